"""Stage train-scst: a captioner of cross-entropy to one that self-critical training refined."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.pipeline.engine.artifacts import CAPTIONER, TRAIN_SCST
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Announcement, announce
from a2cap.pipeline.training.captioner.config import ScstConfig

CODE_VERSION = 1


def train_scst_stage(
    config: ScstConfig,
    *,
    features: Input,
    captions: Input,
    model: Input,
    runtime: RuntimeConfig,
) -> Stage:
    """The stage over one feature store, preprocessed captions and what train-xe made of them."""
    return Stage(
        name=TRAIN_SCST,
        code_version=CODE_VERSION,
        params={"scst": config.model_dump(mode="json", by_alias=True)},
        inputs={"features": features, "captions": captions, "model": model},
        outputs=plain_outputs(*CAPTIONER),
        work=partial(_refine, config, features.path, captions.path, model.path, runtime),
    )


def join(announcement: Announcement, runtime: RuntimeConfig) -> None:
    """Takes part in the training that the first process announces, without writing anything."""
    directory = Path(announcement["directory"])
    _fill(
        ScstConfig.model_validate(announcement["scst"]),
        Path(announcement["features"]),
        Path(announcement["captions"]),
        Path(announcement["model"]),
        runtime,
        directory,
        EventLog(directory),
    )


def _refine(
    config: ScstConfig,
    features: Path,
    captions: Path,
    model: Path,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    announce(
        {
            "stage": TRAIN_SCST,
            "scst": config.model_dump(mode="json"),
            "features": str(features),
            "captions": str(captions),
            "model": str(model),
            "directory": str(directory),
        }
    )
    _fill(config, features, captions, model, runtime, directory, events)
    return []


def _fill(
    config: ScstConfig,
    features: Path,
    captions: Path,
    model: Path,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> None:
    from a2cap.pipeline.training.captioner.self_critical import refine_captioner

    refine_captioner(config, features, captions, model, runtime, directory=directory, events=events)
