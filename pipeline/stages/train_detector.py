"""Stage train-detector: labelled images to the weights of a detector, for `a2 extract`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.pipeline.engine.artifacts import (
    DETECTOR,
    DETECTOR_FIGURES,
    DETECTOR_NAMES,
    TRAIN_DETECTOR,
)
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Announcement, announce
from a2cap.pipeline.training.detector.config import DetectorConfig

CODE_VERSION = 1


_PLACES = {
    "images",
    "labels",
    "ids",
    "validation_images",
    "validation_labels",
    "validation_ids",
    "attributes",
    "object_names",
    "attribute_names",
    "start",
}
"""Fields that say where something lies: its digest stands in the key instead."""


def train_detector_stage(
    config: DetectorConfig, *, inputs: Mapping[str, Input], runtime: RuntimeConfig
) -> Stage:
    """The stage over the files that the configuration names, by their fields."""
    return Stage(
        name=TRAIN_DETECTOR,
        code_version=CODE_VERSION,
        params={"detector": config.model_dump(mode="json", by_alias=True, exclude=_PLACES)},
        inputs=dict(inputs),
        outputs=plain_outputs(DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES),
        work=partial(_train, config, runtime),
    )


def join(announcement: Announcement, runtime: RuntimeConfig) -> None:
    """Takes part in the training that the first process announces, without writing anything."""
    from a2cap.pipeline.training.detector.train import train_detector

    directory = Path(announcement["directory"])
    config = DetectorConfig.model_validate(announcement["detector"])
    train_detector(config, runtime, directory=directory, events=EventLog(directory))


def _train(
    config: DetectorConfig, runtime: RuntimeConfig, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.training.detector.train import train_detector

    announce(
        {
            "stage": TRAIN_DETECTOR,
            "detector": config.model_dump(mode="json"),
            "directory": str(directory),
        }
    )
    data = train_detector(config, runtime, directory=directory, events=events)
    return [*data.training.skipped, *data.validation.skipped]
