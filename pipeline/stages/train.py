"""Stage train-xe: features and captions to a captioner, by cross-entropy and the mask loss."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from a2.data.annotations import Skipped
from a2.model.config import ModelConfig
from a2.pipeline.config import RuntimeConfig, TrainConfig
from a2.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2.pipeline.model_errors import model_errors

NAME = "train-xe"
CODE_VERSION = 1

OUTPUTS = ("model.safetensors", "model.json", "vocabulary.json", "extractor.json")


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
        name=NAME,
        code_version=CODE_VERSION,
        params={
            "train": config.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
        },
        inputs={"features": features, "captions": captions},
        outputs=plain_outputs(*OUTPUTS),
        work=partial(_train, config, model, features.path, captions.path, runtime),
    )


def _train(
    config: TrainConfig,
    model: ModelConfig,
    features: Path,
    captions: Path,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[Skipped]:
    from a2.pipeline.training import train_captioner

    with model_errors():
        train_captioner(
            config, model, features, captions, runtime, directory=directory, events=events
        )
    return []
