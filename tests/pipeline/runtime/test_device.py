"""Tests of the device that a command uses."""

import pytest
import torch

from a2cap.data.errors import ConfigError
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


@pytest.fixture
def third_of_four(monkeypatch):
    """Pretend to be the third of four ranks that torchrun started on this machine."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for name, value in {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
    }.items():
        monkeypatch.setenv(name, value)


def test_auto_is_the_cpu_without_a_gpu(no_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cpu")


def test_auto_is_the_gpu_if_there_is_one(a_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_rank_has_its_own_gpu(a_gpu, third_of_four, name):
    assert prepare_device(RuntimeConfig(device=name)) == torch.device("cuda", 2)


def test_one_gpu_for_several_ranks_is_rejected(a_gpu, third_of_four):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device="cuda:1"))
    assert str(error.value) == (
        "runtime.device is 'cuda:1', one GPU for the 4 ranks that torchrun started; use auto"
    )


def test_more_ranks_than_gpus_are_rejected(a_gpu, third_of_four, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig())
    assert str(error.value) == (
        "torchrun started 4 ranks for 3 GPUs; set --nproc-per-node to the number of GPUs"
    )


def test_ranks_can_share_the_cpu(a_gpu, third_of_four):
    assert prepare_device(RuntimeConfig(device="cpu")) == torch.device("cpu")


def test_a_local_rank_inherited_from_a_shell_is_ignored(a_gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert prepare_device(RuntimeConfig()) == torch.device("cuda")


def test_float32_is_not_rounded_to_tf32(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    prepare_device(RuntimeConfig())
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_named_gpu_is_used(a_gpu):
    assert prepare_device(RuntimeConfig(device="cuda:1")) == torch.device("cuda", 1)


def test_the_cpu_can_be_chosen_despite_a_gpu(a_gpu):
    assert prepare_device(RuntimeConfig(device="cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_missing_gpu_is_rejected(no_gpu, name):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device=name))
    assert str(error.value) == (
        f"runtime.device is {name!r} but torch finds no GPU; use auto or cpu"
    )


@pytest.mark.parametrize("name", ["gpu", "", "cuda:first", "meta", "mps"])
def test_an_unknown_device_is_rejected(a_gpu, name):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device=name))
    assert str(error.value) == f"runtime.device is not a device: {name!r}; use auto, cpu or cuda"


def test_threads_are_set_only_if_configured(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare_device(RuntimeConfig(device="cpu"))
    assert asked == []
    prepare_device(RuntimeConfig(device="cpu", threads=3))
    assert asked == [3]
