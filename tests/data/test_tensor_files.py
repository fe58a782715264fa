"""Tensors on the disk: what is written is read, and a disk that refuses is an error of its own."""

import errno
import resource

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from a2.data import tensor_files
from a2.data.tensor_files import save_tensors


def test_tensors_that_are_not_contiguous_keep_their_values(tmp_path):
    turned = torch.arange(6.0).reshape(2, 3).T
    save_tensors(tmp_path / "a.safetensors", {"turned": turned})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["turned"], turned)


def test_a_full_disk_is_an_error_of_the_system_that_names_the_file(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save_tensors(tmp_path / "a.safetensors", {"many": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert raised.value.filename == str(tmp_path / "a.safetensors")


def test_what_is_no_error_of_the_system_stays_what_it_is(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise SafetensorError("header too large")

    monkeypatch.setattr(tensor_files, "save_file", refuse)
    with pytest.raises(SafetensorError, match="header too large"):
        save_tensors(tmp_path / "a.safetensors", {})
