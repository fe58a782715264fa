"""Commands without what macOS and Windows lack, on Linux: the modules and functions are blocked."""

import ast
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from a2cap.data.errors import ConfigError
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.losses import two_losses
from a2cap.pipeline.runtime.device import prepare_device, require_double
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from tests.data.messages import message_of
from tests.model.kinds import FEATURE_WIDTH, KINDS, make
from tests.test_structure import SOURCE, named

SYSTEM = "data/files/system.py"
BLOCKED = {
    "fcntl": None,
    "resource": None,
    "signal": ["sigwaitinfo", "sigtimedwait", "pthread_sigmask", "SIGHUP", "SIGKILL", "SIGUSR1"],
    "os": ["getuid", "pread", "sched_getaffinity", "O_NONBLOCK", "O_NOCTTY", "fork"],
}
"""Module -> None if it is absent, or the names that it lacks."""

PROGRAM = f"""
import os, signal, sys, threading, traceback
blocked = {BLOCKED!r}
import multiprocessing.util, pkgutil, shutil, subprocess, tempfile, uuid  # read some at import
for module, names in blocked.items():
    if names is None:
        sys.modules[module] = None
    for name in names or ():
        vars(sys.modules[module]).pop(name, None)
import warnings
warnings.simplefilter("ignore")  # of filelock, which has no lock of the kernel to use
from a2cap.pipeline.cli.main import cli
for line in sys.stdin:
    try:
        cli(line.rstrip("\\n").split("\\t"))
    except SystemExit as stop:
        print(f"exit {{stop.code}}: {{line.split()[0]}}", flush=True)
"""


@pytest.mark.slow
def test_commands_run_without_the_modules_that_windows_lacks(copy):
    config = ["-c", str(copy.experiment.config_file), "--artifacts", str(copy.artifacts)]
    image = next((copy.experiment.scenes / "images").iterdir())
    commands = [
        ["--help"],
        ["status", *config],
        ["run", *config, "--set", "preprocess.max_length=9", "--set", "train.epochs=1"],
        ["verify", str(copy.artifacts)],
        ["clean", *config[2:]],
        ["runs", *config[2:]],
        ["caption", "--model", "scenes", str(image)],
    ]
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(map("\t".join, commands)),
        capture_output=True,
        text=True,
        check=False,
    )
    ends = [line for line in answer.stdout.splitlines() if line.startswith("exit ")]
    assert ends == [f"exit 0: {command[0]}" for command in commands], answer.stderr


def test_only_one_module_uses_what_systems_lack():
    names = {"fcntl", "resource", *BLOCKED["signal"], *BLOCKED["os"]}
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCE}
    users = {
        (named(path), name)
        for path, text in sources.items()
        if any(name in text for name in names)
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.attr]
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("os", "signal")
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name in names
    }
    assert {path for path, _ in users} == {SYSTEM}


class NoDouble(TorchDispatchMode):
    """Fail where torch makes a float64, which an Apple GPU has not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not (isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64), func
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_captions_and_their_training_use_no_float64(kind):
    captioner = make(kind, alignment={"fusion": "gate"}).float()
    features, boxes = torch.randn(2, 4, FEATURE_WIDTH), torch.rand(2, 4, 5)
    mask = torch.ones(2, 4, dtype=torch.bool)
    captions = torch.tensor([[[4, 5, 2]], [[6, 2, 0]]])
    with NoDouble():
        memory = captioner.encode(features, boxes, mask)
        beam_search(captioner, memory, DecodingConfig(beam_size=2, max_length=3))
        losses = two_losses(captioner, memory, captions)
    assert losses


def test_an_apple_gpu_is_used_only_where_it_can_be(monkeypatch):
    runtime = RuntimeConfig(device="mps")
    assert message_of(prepare_device, runtime, error=ConfigError) == (
        "runtime.device is 'mps' but torch finds no Apple GPU; use auto or cpu"
    )
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    device = prepare_device(runtime)
    assert device == torch.device("mps")
    assert message_of(require_double, device, "sampling", error=ConfigError) == (
        "runtime.device is 'mps', which lacks the float64 that sampling computes in; set "
        "runtime.device to cpu"
    )
    require_double(torch.device("cpu"), "sampling")
