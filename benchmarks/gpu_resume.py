"""Trainings that are killed in the middle, resumed, and compared with uninterrupted ones.

Each is a process of `a2 train` on random features and captions in a temporary folder. It is ended
by SIGKILL as soon as it has written a checkpoint, in both training tasks.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file

from a2cap.data.features.writer import FeatureWriter
from a2cap.data.image_ids import image_id
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONER,
    CHECKPOINTS,
    EPOCHS,
    EVENTS,
    EXTRACT,
    PREPROCESS,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.experiment import Experiment
from benchmarks.preprocess import random_regions
from benchmarks.self_critical import Sizes

TASKS = {TRAIN_XE: "cross-entropy", TRAIN_SCST: "self-critical"}
EPOCH, HELD_OUT = 20, 2
"""Updates of an epoch, and images of validation and of test."""
_EVERY = 8  # updates between checkpoints
_SECONDS = 180  # that a training may take until its first checkpoint, and until its end


def kill_and_resume(
    device: torch.device, sizes: Sizes, model: TransformerConfig
) -> dict[str, object]:
    """Return the tensors that differ after a kill and a resume, of each task.

    model: as for the paper, of which one layer each is trained. Raises RuntimeError for tensors
    that differ, and for a training that fails or ends before it is killed.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = write_experiment(folder, device, sizes, model)
        whole, killed = folder / "whole", folder / "killed"
        with Experiment(load_config(config), whole) as experiment:
            for stage in (EXTRACT, PREPROCESS):
                experiment.run(stage)
        shutil.copytree(whole, killed)
        with _train(config, whole) as uninterrupted:
            try:
                for stage in TASKS:
                    _kill(config, killed, stage)
                with _train(config, killed) as resumed:
                    _await(resumed, killed)
                _await(uninterrupted, whole)
            finally:
                uninterrupted.kill()
        return {task: _compared(whole / stage, killed / stage) for stage, task in TASKS.items()}


def write_experiment(
    folder: Path, device: torch.device, sizes: Sizes, model: TransformerConfig
) -> Path:
    """Write random features and captions, and the configuration; return its path."""
    rng = np.random.default_rng(0)
    training = EPOCH * sizes.images
    lines = []
    with FeatureWriter(folder / "features.lmdb") as store:
        for number in range(1, training + 2 * HELD_OUT + 1):
            file = f"{number}.jpg"
            store.add(image_id(file), random_regions(rng, sizes.regions, sizes.feature_width))
            words = rng.integers(100, size=(5, sizes.tokens - 1))
            split = "train" if number <= training else ("val", "test")[number % 2]
            captions = [" ".join(f"word{word}" for word in row) for row in words]
            lines.append(json.dumps({"image": file, "captions": captions, "split": split}))
        store.seal()
    (folder / "captions.jsonl").write_text("\n".join(lines))
    small = model.model_copy(update={"encoder_layers": 1, "decoder_layers": 1})
    both = {
        **{"epochs": 2, "batch_size": sizes.images, "checkpoint_every": _EVERY},
        **{"deterministic": True, "validation_beam_size": 1},
    }
    config = folder / "config.yaml"
    sections = {
        "data": {
            "features": f"{folder / 'features.lmdb'}",
            "annotations": f"{folder / 'captions.jsonl'}",
        },
        "preprocess": {"min_count": 1},
        "model": small.model_dump(mode="json"),
        "train": both,
        "scst": {**both, "samples": sizes.samples, "max_length": sizes.tokens},
        "runtime": {"device": str(device)},
    }
    config.write_text(json.dumps(sections))  # which is YAML too
    return config


def _train(config: Path, artifacts: Path) -> subprocess.Popen[bytes]:
    """Start a training, which appends what it reports to a file."""
    # -P: a folder of the checkout has the name of the package
    command = [sys.executable, "-P", "-m", "a2cap.pipeline", "train", "-c", str(config)]
    with _log(artifacts).open("ab") as log:
        return subprocess.Popen([*command, "--artifacts", str(artifacts)], stdout=log, stderr=log)


def _log(artifacts: Path) -> Path:
    return artifacts.with_suffix(".log")


def _kill(config: Path, artifacts: Path, stage: str) -> None:
    """Start a training and kill it once a checkpoint of the stage is complete."""
    checkpoints = f"{stage}/*.partial/{CHECKPOINTS}/step-*"
    with _train(config, artifacts) as training:
        waited_until = time.monotonic() + _SECONDS
        while training.poll() is None and time.monotonic() < waited_until:
            if any(artifacts.glob(checkpoints)):
                break
            time.sleep(0.005)
        training.kill()
    if training.returncode != -signal.SIGKILL:
        raise RuntimeError(f"a2 train ended before it was killed: {_last_line(artifacts)}")


def _await(training: subprocess.Popen[bytes], artifacts: Path) -> None:
    try:
        code = training.wait(_SECONDS)
    finally:
        training.kill()
    if code:
        raise RuntimeError(f"a2 train failed: {_last_line(artifacts)}")


def _last_line(artifacts: Path) -> str:
    return _log(artifacts).read_text().splitlines()[-1]


def _compared(whole: Path, killed: Path) -> dict[str, object]:
    """Compare the finished captioners of a stage; count updates, and those before the resume."""
    [result], [resumed] = (list(stage.glob(f"*/{CAPTIONER[0]}")) for stage in (whole, killed))
    expected, tensors = load_file(result), load_file(resumed)
    differing = sum(not torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    if differing:
        raise RuntimeError(f"{differing} of {len(expected)} tensors differ after a resume")
    events, epochs = (
        [json.loads(line) for line in (resumed.parent / name).read_text().splitlines()]
        for name in (EVENTS, EPOCHS)
    )
    steps = [event["step"] for event in events if event["event"] == "resume"]
    if not steps:
        raise RuntimeError("the training began again, without its checkpoint")
    return {
        "tensors": len(expected),
        "differing": differing,
        "resumed_at": steps[0],
        "updates": epochs[-1]["step"],
    }
