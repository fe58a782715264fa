"""Who joins a self-critical training does it as it was announced, with its own device alone."""

from pathlib import Path

from a2cap.pipeline.engine.artifacts import TRAIN_SCST
from a2cap.pipeline.engine.stage import EventLog, Input
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.stages import train_scst
from a2cap.pipeline.training.captioner import self_critical
from a2cap.pipeline.training.captioner.config import ScstConfig


def test_a_training_is_announced_as_the_others_then_join_it(monkeypatch, tmp_path):
    trained, announced = [], []
    monkeypatch.setattr(
        self_critical, "refine_captioner", lambda *given, **named: trained.append((given, named))
    )
    monkeypatch.setattr(train_scst, "announce", announced.append)
    config = ScstConfig(epochs=2, betas=(0.8, 0.9), baseline="greedy")
    paths = [Path("features"), Path("captions"), Path("model")]
    stage = train_scst.train_scst_stage(
        config,
        features=Input(paths[0], "1"),
        captions=Input(paths[1], "2"),
        model=Input(paths[2], "3"),
        runtime=RuntimeConfig(device="cpu"),
    )
    assert stage.work(tmp_path, EventLog(tmp_path)) == []
    [announcement] = announced
    assert announcement["stage"] == TRAIN_SCST
    train_scst.join(announcement, RuntimeConfig(device="cuda:1"))
    (first, first_named), (other, other_named) = trained
    assert first == (config, *paths, RuntimeConfig(device="cpu"))
    assert other == (config, *paths, RuntimeConfig(device="cuda:1"))
    assert first_named["directory"] == other_named["directory"] == tmp_path
    assert not list(tmp_path.iterdir())
