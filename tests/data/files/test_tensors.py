"""Tensors on the disk: what is written is read, and a disk that refuses is an error of its own."""

import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2cap.data.files.tensors import save_tensors


def test_tensors_that_are_not_contiguous_keep_their_values(tmp_path):
    turned = torch.arange(6.0).reshape(2, 3).T
    save_tensors(tmp_path / "a.safetensors", {"turned": turned})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["turned"], turned)


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save_tensors(tmp_path / "a.safetensors", {"many": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG


def test_nothing_else_is_written_whose_name_a_rerun_would_not_know(tmp_path, monkeypatch):
    opened = []
    opening = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *how, **more: opened.append(self) or opening(self, *how, **more)
    )
    save_tensors(tmp_path / "a.safetensors", {"one": torch.ones(3)})
    assert opened == [tmp_path / "a.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_tensors_are_the_bytes_that_the_library_writes(tmp_path):
    tensors = {"one": torch.ones(3), "two": torch.zeros(2, 2, dtype=torch.int64)}
    save_tensors(tmp_path / "a.safetensors", tensors, {"key": "value"})
    save_file(tensors, tmp_path / "b.safetensors", {"key": "value"})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
