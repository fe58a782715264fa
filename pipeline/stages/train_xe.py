"""Stage train-xe: features and captions to a captioner, by cross-entropy and the mask loss."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.model.config import ModelConfig
from a2cap.pipeline.engine.artifacts import CAPTIONER, TRAIN_XE
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Announcement, announce
from a2cap.pipeline.training.captioner.config import TrainConfig

CODE_VERSION = 2


def train_stage(
    config: TrainConfig,
    model: ModelConfig,
    *,
    features: Input,
    captions: Input,
    runtime: RuntimeConfig,
) -> Stage:
    """The stage over one feature store and one set of preprocessed captions."""
    return Stage(
        name=TRAIN_XE,
        code_version=CODE_VERSION,
        params={
            "train": config.model_dump(mode="json", by_alias=True),
            "model": model.model_dump(mode="json", by_alias=True),
        },
        inputs={"features": features, "captions": captions},
        outputs=plain_outputs(*CAPTIONER),
        work=partial(_train, config, model, features.path, captions.path, runtime),
    )


def join(announcement: Announcement, runtime: RuntimeConfig) -> None:
    """Takes part in the training that the first process announces, without writing anything."""
    directory = Path(announcement["directory"])
    _fill(
        TrainConfig.model_validate(announcement["train"]),
        ModelConfig.model_validate(announcement["model"]),
        Path(announcement["features"]),
        Path(announcement["captions"]),
        runtime,
        directory,
        EventLog(directory),
    )


def _train(
    config: TrainConfig,
    model: ModelConfig,
    features: Path,
    captions: Path,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    announce(
        {
            "stage": TRAIN_XE,
            "train": config.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
            "features": str(features),
            "captions": str(captions),
            "directory": str(directory),
        }
    )
    _fill(config, model, features, captions, runtime, directory, events)
    return []


def _fill(
    config: TrainConfig,
    model: ModelConfig,
    features: Path,
    captions: Path,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> None:
    from a2cap.pipeline.training.captioner.cross_entropy import train_captioner

    train_captioner(config, model, features, captions, runtime, directory=directory, events=events)
