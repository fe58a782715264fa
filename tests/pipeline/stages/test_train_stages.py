"""Tests of the training stages: other ranks join with the same job and their own device."""

from pathlib import Path

import pytest

from a2cap.data.detection.labels import DetectionData
from a2cap.model.config import TransformerConfig
from a2cap.pipeline.engine.stage import EventLog, Input
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.stages import train_detector, train_scst, train_xe
from a2cap.pipeline.training.captioner import cross_entropy, self_critical
from a2cap.pipeline.training.captioner.config import (
    CrossEntropyJob,
    ScstConfig,
    SelfCriticalJob,
    TrainConfig,
)
from a2cap.pipeline.training.detector import train as detector_training
from a2cap.pipeline.training.detector.config import DetectorConfig
from a2cap.pipeline.training.detector.data import DetectorData

MAIN, OTHER = RuntimeConfig(device="cpu"), RuntimeConfig(device="cuda:1")
INPUTS = {name: Input(Path(name), name) for name in ("features", "captions")}
MODEL = {"model": Input(Path("model"), "model")}
NO_DATA = DetectorData(DetectionData((), (), ()), DetectionData((), (), ()))


def cross_entropy_stage():
    train, model = TrainConfig(seed=3, betas=(0.8, 0.9)), TransformerConfig(width=32)
    stage = train_xe.train_stage(train, model, inputs=INPUTS, runtime=MAIN)
    job = CrossEntropyJob(
        train=train, model=model, features=Path("features"), captions=Path("captions")
    )
    return train_xe, stage, job, (cross_entropy, "train_captioner")


def self_critical_stage():
    scst = ScstConfig(epochs=2, betas=(0.8, 0.9), baseline="greedy")
    stage = train_scst.train_scst_stage(scst, inputs=INPUTS | MODEL, runtime=MAIN)
    job = SelfCriticalJob(
        scst=scst, features=Path("features"), captions=Path("captions"), model=Path("model")
    )
    return train_scst, stage, job, (self_critical, "refine_captioner")


def detector_stage():
    config = DetectorConfig(images=Path("images"), labels=Path("labels.json"), anchor_sizes=(8, 9))
    stage = train_detector.train_detector_stage(config, inputs={}, runtime=MAIN)
    return train_detector, stage, config, (detector_training, "train_detector")


@pytest.mark.parametrize("make", [cross_entropy_stage, self_critical_stage, detector_stage])
def test_other_ranks_join_the_broadcast_job_with_their_own_device(monkeypatch, tmp_path, make):
    module, stage, job, (home, function) = make()
    trained, broadcast = [], []

    def train(job, runtime, *, directory, events):
        trained.append((job, runtime, directory))
        return NO_DATA

    monkeypatch.setattr(home, function, train)
    monkeypatch.setattr(module, "broadcast_job", broadcast.append)
    assert stage.work(tmp_path, EventLog(tmp_path)) == []
    [announced] = broadcast
    assert announced.stage == stage.name
    module.join(announced, OTHER)
    assert trained == [(job, MAIN, tmp_path), (job, OTHER, tmp_path)]
    assert not list(tmp_path.iterdir())
