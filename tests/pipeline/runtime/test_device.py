"""Tests of the device that a command uses."""

import warnings

import pytest
import torch

from a2cap.data.errors import ConfigError
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.runtime.device import (
    _warn_once,
    compiles_updates,
    find_gpu,
    prepare_device,
)
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.runtime.training_precision import resolve_training_precision


@pytest.fixture(autouse=True)
def new_process():
    """Forget what earlier tests made torch report."""
    for function in (find_gpu, _warn_once):
        function.cache_clear()
    yield
    find_gpu.cache_clear()


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
    values = {"RANK": 6, "WORLD_SIZE": 8, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def inherited_rank(monkeypatch):
    """Pretend that a shell inherited a local rank, without torchrun."""
    monkeypatch.setenv("LOCAL_RANK", "3")


@pytest.mark.parametrize(
    ("machine", "name", "expected"),
    [
        (("no_gpu",), "auto", "cpu"),
        (("a_gpu",), "auto", "cuda"),
        (("a_gpu",), "cuda:1", "cuda:1"),
        (("a_gpu",), "cpu", "cpu"),
        (("a_gpu", "third_of_four"), "auto", "cuda:2"),
        (("a_gpu", "third_of_four"), "cuda", "cuda:2"),
        (("a_gpu", "third_of_four"), "cpu", "cpu"),
        (("a_gpu", "inherited_rank"), "auto", "cuda"),
    ],
)
def test_a_rank_uses_the_named_device_or_its_own_gpu(request, machine, name, expected):
    for fixture in machine:
        request.getfixturevalue(fixture)
    assert prepare_device(RuntimeConfig(device=name)) == torch.device(expected)


OLD_DRIVER = (
    "the GPU's driver is too old for this torch of CUDA 13.2: 11040; update the driver, or install "
    "a torch of an older CUDA"
)


@pytest.fixture
def old_driver(monkeypatch):
    # of c10/cuda/CUDAFunctions.cpp, whose TORCH_WARN_ONCE warns once in a process
    texts = [
        "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). "
        "Please update your GPU driver by downloading and installing a new version"
    ]

    def warn():
        if texts:
            warnings.warn(texts.pop(), stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", warn)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    resolve_training_precision("auto", "auto")  # of the configuration, before any device


def test_an_old_driver_is_one_line_and_the_cpu_computes(old_driver, caplog):
    for _ in range(2):
        assert prepare_device(RuntimeConfig()) == torch.device("cpu")
    assert caplog.messages == [f"{OLD_DRIVER}; computing on the CPU"]


@pytest.mark.parametrize(
    ("choice", "devices"), [("auto", ["cuda"]), ("on", ["cpu", "cuda", "mps"]), ("off", [])]
)
def test_updates_are_compiled_on_a_gpu_or_where_the_setting_is_on(choice, devices):
    def compiled(*, deterministic):
        names = ("cpu", "cuda", "mps")
        options = {"runtime": RuntimeConfig(compile=choice), "deterministic": deterministic}
        return [n for n in names if compiles_updates(device=torch.device(n), **options)]

    assert compiled(deterministic=False) == devices
    assert compiled(deterministic=True) == ([] if choice == "auto" else devices)


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_on_and_off_are_words_that_yaml_reads_as_truth_values(word, tmp_path):
    config = load_config(None, [f"runtime.compile={word}"])
    assert config.runtime.compile == word
    written = tmp_path / "config.yaml"
    written.write_text(config.to_yaml())
    assert load_config(written).runtime.compile == word
    assert load_config().runtime.compile == "off"


NO_GPU = "runtime.device is {!r} but torch finds no GPU; use auto or cpu"
UNKNOWN = "runtime.device is not a device: {!r}; use auto, cpu, cuda or mps"


@pytest.mark.parametrize(
    ("machine", "name", "message"),
    [
        *(("no_gpu", name, NO_GPU) for name in ("cuda", "cuda:0")),
        ("old_driver", "cuda", f"runtime.device is {{!r}} but {OLD_DRIVER}; use auto or cpu"),
        *(("a_gpu", name, UNKNOWN) for name in ("gpu", "", "cuda:first", "meta")),
        (
            "third_of_four",
            "cuda:1",
            "runtime.device is {!r}, one GPU for the 4 ranks that torchrun started; use auto",
        ),
        (
            "third_of_four",
            "auto",
            "torchrun started 4 ranks for 3 GPUs; set --nproc-per-node to the number of GPUs",
        ),
    ],
)
def test_an_unusable_device_is_rejected(a_gpu, request, monkeypatch, machine, name, message):
    request.getfixturevalue(machine)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError) as error:
        prepare_device(RuntimeConfig(device=name))
    assert str(error.value) == message.format(name)


def test_float32_is_not_rounded_to_tf32(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    prepare_device(RuntimeConfig())
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_threads_are_set_only_if_configured(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare_device(RuntimeConfig(device="cpu"))
    assert asked == []
    prepare_device(RuntimeConfig(device="cpu", threads=3))
    assert asked == [3]
