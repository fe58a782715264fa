"""Where to compute: said before any model is loaded."""

import pytest
import torch

from a2.data.errors import ConfigError
from a2.pipeline.config import RuntimeConfig
from a2.pipeline.device import prepare_device


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_auto_is_the_cpu_where_there_is_no_gpu(no_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cpu")


def test_auto_is_the_gpu_where_there_is_one(a_gpu):
    assert prepare_device(RuntimeConfig()) == torch.device("cuda")


def test_auto_is_a_gpu_for_each_process_of_torchrun(a_gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert prepare_device(RuntimeConfig()) == torch.device("cuda", 3)
    assert prepare_device(RuntimeConfig(device="cuda:1")) == torch.device("cuda", 1)


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
