"""Trainings of the tiny experiment: started, stopped, and compared with each other."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from a2cap.data.errors import A2Error
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.training.captioner import cross_entropy, self_critical
from a2cap.pipeline.training.checkpoints import Checkpoint, Checkpoints
from a2cap.pipeline.training.detector.train import train_detector
from a2cap.pipeline.training.training_run import TrainingRun
from tests.pipeline.conftest import Labelled

SMALL = ("train.epochs=2", "train.batch_size=6", "train.checkpoint_every=4")
SMALL_SCST = (
    *("scst.epochs=2", "scst.batch_size=6", "scst.checkpoint_every=4"),
    *("scst.samples=2", "scst.lr=1e-3", "scst.max_length=8", "scst.validation_beam_size=2"),
)
STEPS_PER_EPOCH, STEPS = 6, 12  # of the 32 training images
CAPTIONER = ("model.safetensors", "model.json", "vocabulary.json", "extractor.json")
DETECTOR = ("detector.safetensors", "figures.json", "names.json")


def run_in(folder: Path, runtime: RuntimeConfig, **inputs: Path) -> TrainingRun:
    """Return the run of a training on the current ranks, with inputs that nothing checks."""
    unchecked = Inputs({name: Input(path, "") for name, path in inputs.items()})
    return TrainingRun(folder, unchecked, EventLog(folder), runtime)


@dataclass(frozen=True)
class CaptionerTraining:
    """Cross-entropy training on the tiny experiment; with a model, its self-critical training."""

    config_file: Path
    features: Path
    captions: Path
    model: Path | None = None

    def __call__(self, directory: Path, *overrides: str, workers: int = 0) -> Path:
        """Train into a directory and return it."""
        directory.mkdir(exist_ok=True)
        config = load_config(self.config_file, (*SMALL, *SMALL_SCST, *overrides))
        data = {"features": self.features, "captions": self.captions}
        if self.model is not None:
            data["model"] = self.model
        runtime = config.runtime.model_copy(update={"workers": workers})
        run = run_in(directory, runtime, **data)
        if self.model is None:
            cross_entropy.train_captioner(config.train, config.model, run)
        else:
            self_critical.refine_captioner(config.scst, run)
        return directory


@dataclass(frozen=True)
class DetectorTraining:
    """Training of a detector on the labelled scenes."""

    labelled: Labelled

    def __call__(self, directory: Path, *, workers: int = 0, **changes: object) -> Path:
        """Train into a directory and return it."""
        directory.mkdir(exist_ok=True)
        runtime = RuntimeConfig(device="cpu", threads=1, workers=workers)
        train_detector(self.labelled.config(**changes), run_in(directory, runtime))
        return directory


def outcome(work: Callable[[], object]) -> int | str | None:
    """Return the signal that stopped the work, its error message, or None."""
    try:
        work()
    except Interrupted as stop:
        return stop.signal_number
    except A2Error as error:
        return str(error)
    return None


def until_done(work: Callable[[], object]) -> list[int]:
    """Repeat the work after every stop; return the signals that stopped it."""
    stops: list[int] = []
    while (stop := outcome(work)) is not None:
        assert isinstance(stop, int), stop
        stops.append(stop)
    return stops


def metrics(directory: Path) -> list[dict[str, float]]:
    """Return the lines of metrics.jsonl, without that of a start's own score."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["epoch"]]


def without_speed(directory: Path) -> list[dict[str, float]]:
    """Return the lines of metrics.jsonl without the speed."""
    return [
        {name: value for name, value in line.items() if not name.endswith("_per_second")}
        for line in metrics(directory)
    ]


def events(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind."""
    lines = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint."""
    return Checkpoints(directory / "checkpoints").steps()


def last_checkpoint(directory: Path) -> Checkpoint:
    """Return the newest checkpoint."""
    checkpoint = Checkpoints(directory / "checkpoints").latest()
    assert checkpoint is not None
    return checkpoint


def assert_equal_results(first: Path, second: Path) -> None:
    """Compare outputs, metrics and last checkpoints bit for bit."""
    names = CAPTIONER if (first / "model.json").exists() else DETECTOR
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert without_speed(first) == without_speed(second)
    actual, expected = last_checkpoint(first), last_checkpoint(second)
    assert actual.step == expected.step
    torch.testing.assert_close(actual.tensors, expected.tensors, rtol=0, atol=0)
    for name in ("optimizer", "random"):
        states = (actual.state[name], expected.state[name])
        torch.testing.assert_close(*map(_tensors, states), rtol=0, atol=0)
    assert _python_states(actual) == _python_states(expected)


def _python_states(checkpoint: Checkpoint) -> list[object]:
    random: Any = checkpoint.state["random"]
    return [of_rank["python"] for of_rank in random]


def _tensors(state: Any) -> Any:
    """Return the tensors of a nested state in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state
    if not isinstance(state, dict | list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


def copied_artifacts(experiment: Any, folder: Path, *without: str) -> Path:
    """Copy the experiment's artifacts except those of some stages."""
    folder.mkdir(exist_ok=True)
    ignored = shutil.ignore_patterns(*without)
    return Path(shutil.copytree(experiment.artifacts, folder / "artifacts", ignore=ignored))


def train_command(
    experiment: Any, artifacts: Path, overrides: Sequence[str], *, launcher: Sequence[str] = ()
) -> list[str]:
    """Return the command line of `a2 train` on the tiny experiment."""
    command = [sys.executable, *launcher, "-m", "a2cap.pipeline", "train"]
    command += ["-c", str(experiment.config_file), "--artifacts", str(artifacts)]
    return command + [word for override in overrides for word in ("--set", override)]


SIGNALLED = """
import os, signal, threading
from a2cap.pipeline.cli.main import main
from a2cap.pipeline.engine.events import EventLog

write, left = EventLog.write, [{checkpoints}]

def write_and_signal(log, event, **fields):
    write(log, event, **fields)
    if event == "checkpoint":
        left[0] -= 1
        if left == [0]:  # a moment later, in the middle of the work
            threading.Timer(0.002, os.kill, (os.getpid(), {sent})).start()

EventLog.write = write_and_signal
main()
"""


def signalled_after(
    checkpoints: int, sent: int, command: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run a command that signals itself after a number of checkpoints."""
    script = SIGNALLED.format(checkpoints=checkpoints, sent=int(sent))
    words = [sys.executable, "-c", script, *command[command.index("train") :]]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, start_new_session=True, timeout=600
    )
