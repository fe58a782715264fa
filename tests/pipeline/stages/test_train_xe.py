"""Who joins a training does it as it was announced, with its own device alone."""

from pathlib import Path

from a2cap.model.config import ModelConfig
from a2cap.pipeline.engine.stage import EventLog, Input
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.stages import train_xe as train
from a2cap.pipeline.training.captioner import cross_entropy
from a2cap.pipeline.training.captioner.config import TrainConfig


def test_a_training_is_announced_as_the_others_then_join_it(monkeypatch, tmp_path):
    trained, announced = [], []
    monkeypatch.setattr(
        cross_entropy, "train_captioner", lambda *given, **named: trained.append((given, named))
    )
    monkeypatch.setattr(train, "announce", announced.append)
    config, model = TrainConfig(seed=3, betas=(0.8, 0.9)), ModelConfig(width=32)
    stage = train.train_stage(
        config,
        model,
        features=Input(Path("features"), "1"),
        captions=Input(Path("captions"), "2"),
        runtime=RuntimeConfig(device="cpu"),
    )
    assert stage.work(tmp_path, EventLog(tmp_path)) == []
    [announcement] = announced
    train.join(announcement, RuntimeConfig(device="cuda:1"))
    (first, first_named), (other, other_named) = trained
    assert first == (
        config,
        model,
        Path("features"),
        Path("captions"),
        RuntimeConfig(device="cpu"),
    )
    assert other == (*first[:4], RuntimeConfig(device="cuda:1"))
    assert first_named["directory"] == other_named["directory"] == tmp_path
    assert len(announced) == 1
    assert not list(tmp_path.iterdir())
