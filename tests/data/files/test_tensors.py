import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from a2cap.data.files.tensors import save_tensors, skip_init
from tests.file_sizes import limited_to


def test_a_full_disk_raises_os_error(tmp_path):
    with limited_to(100), pytest.raises(OSError, match="File too large") as raised:
        save_tensors(tmp_path / "a.safetensors", {"many": torch.zeros(1000)})
    assert raised.value.errno == errno.EFBIG


def test_the_bytes_are_those_of_the_library_without_a_file_of_another_name(tmp_path, monkeypatch):
    opened = []
    opening = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *how, **more: opened.append(self) or opening(self, *how, **more)
    )
    transposed = torch.arange(6.0).reshape(2, 3).T
    tensors = {"one": torch.ones(3), "two": torch.zeros(2, 2, dtype=torch.int64)}
    save_tensors(tmp_path / "a", {**tensors, "transposed": transposed}, {"key": "value"})
    assert opened == [tmp_path / "a"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    save_file({**tensors, "transposed": transposed.contiguous()}, tmp_path / "b", {"key": "value"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class Part(nn.Module):
    """A module initialised in every way that a2's modules are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.words = nn.Embedding(5, 3)
        self.gate = nn.Parameter(torch.empty(2, 3).uniform_(-1, 1))
        nn.init.xavier_uniform_(tensor=self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.table: Tensor
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3).sin(), persistent=False)


def test_a_module_made_with_skip_init_and_loaded_equals_the_saved_one():
    plain, before = Part(), torch.random.get_rng_state()
    with skip_init():
        part = Part()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(part.table, plain.table)
    part.load_state_dict(plain.state_dict())
    assert part.state_dict().keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(part.state_dict()[name], tensor)
    assert all(parameter.requires_grad for parameter in part.parameters())


def test_modules_are_initialised_again_after_skip_init():
    with skip_init():
        pass
    torch.manual_seed(0)
    first = Part().gate
    torch.manual_seed(0)
    assert torch.equal(Part().gate, first)
    assert first.abs().max() > 0


@pytest.mark.slow
def test_skip_init_on_the_meta_device_does_not_load_the_compiler():
    script = (
        "import sys, torch\n"
        "from a2cap.data.files.tensors import skip_init\n"
        "with torch.device('meta'), skip_init():\n"
        "    made = torch.nn.Linear(3, 4)\n"
        "assert made.weight.is_meta\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
