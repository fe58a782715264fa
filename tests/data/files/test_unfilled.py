"""Modules to be filled from a file: what is skipped, and that nothing else is."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from a2cap.data.files.tensors import skip_init


class Part(nn.Module):
    """Every way in which a module of ours gets its values."""

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


def test_nothing_is_drawn_from_the_global_random_state():
    before = torch.random.get_rng_state()
    with skip_init():
        Part()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_filled_from_a_file_it_is_the_module_that_was_saved():
    plain = Part()
    with skip_init():
        part = Part()
    part.load_state_dict(plain.state_dict())
    assert part.state_dict().keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(part.state_dict()[name], tensor)
    assert all(parameter.requires_grad for parameter in part.parameters())


def test_what_no_file_holds_is_computed_as_ever():
    with skip_init():
        part = Part()
    assert torch.equal(part.table, torch.arange(6.0).reshape(2, 3).sin())


def test_modules_are_filled_again_outside():
    with skip_init():
        pass
    torch.manual_seed(0)
    first = Part().gate
    torch.manual_seed(0)
    assert torch.equal(Part().gate, first)
    assert first.abs().max() > 0


@pytest.mark.slow
def test_on_the_meta_device_the_compiler_is_not_loaded():
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
