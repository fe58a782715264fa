"""Where to compute: said before any model is loaded."""

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
    """The third of four processes that torchrun started on this machine."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for name, value in {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
    }.items():
        monkeypatch.setenv(name, value)


def test_auto_is_the_cpu_where_there_is_no_gpu(no_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cpu")


def test_auto_is_the_gpu_where_there_is_one(a_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_of_torchrun_has_a_gpu_of_its_own(a_gpu, third_of_four, name):
    assert prepare_device(RuntimeConfig(device=name)) == torch.device("cuda", 2)


def test_one_gpu_cannot_be_named_for_several_processes(a_gpu, third_of_four):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device="cuda:1"))
    assert str(error.value) == (
        "runtime.device is 'cuda:1', one GPU for the 4 processes that torchrun started; use auto"
    )


def test_more_processes_than_gpus_are_refused(a_gpu, third_of_four, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig())
    assert str(error.value) == (
        "torchrun started 4 processes for 3 GPUs; give --nproc-per-node the number of GPUs"
    )


def test_processes_of_torchrun_can_share_the_cpu(a_gpu, third_of_four):
    assert prepare_device(RuntimeConfig(device="cpu")) == torch.device("cpu")


def test_a_rank_that_was_left_behind_in_a_shell_says_nothing(a_gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert prepare_device(RuntimeConfig()) == torch.device("cuda")


def test_float32_is_not_rounded_to_tf32(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    prepare_device(RuntimeConfig())
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_named_gpu_is_taken(a_gpu):
    assert prepare_device(RuntimeConfig(device="cuda:1")) == torch.device("cuda", 1)


def test_the_cpu_can_be_asked_for_where_there_is_a_gpu(a_gpu):
    assert prepare_device(RuntimeConfig(device="cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_refused(no_gpu, name):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device=name))
    assert str(error.value) == (
        f"runtime.device is {name!r} but torch sees no GPU; use auto or cpu"
    )


@pytest.mark.parametrize("name", ["gpu", "", "cuda:first", "meta", "mps"])
def test_what_is_no_device_is_refused(a_gpu, name):
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device=name))
    assert str(error.value) == f"runtime.device is no device: {name!r}; use auto, cpu or cuda"


def test_threads_are_set_only_where_they_are_named(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare_device(RuntimeConfig(device="cpu"))
    assert asked == []
    prepare_device(RuntimeConfig(device="cpu", threads=3))
    assert asked == [3]
