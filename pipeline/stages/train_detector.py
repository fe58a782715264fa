"""Stage train-detector: labelled images to the weights of a detector, for `a2 extract`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.artifacts import (
    DETECTOR,
    DETECTOR_FIGURES,
    DETECTOR_NAMES,
    TRAIN_DETECTOR,
)
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Job, broadcast_job
from a2cap.pipeline.training.detector.config import DetectorConfig

CODE_VERSION = 1

_PATHS = {
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
"""Fields that are paths: the key contains the digests of their files instead."""


def train_detector_stage(
    config: DetectorConfig, *, inputs: Mapping[str, Input], runtime: RuntimeConfig
) -> PreparedStage:
    """Return the stage over the configured files; inputs: by the field that names them."""
    return PreparedStage(
        name=TRAIN_DETECTOR,
        version=CODE_VERSION,
        fields={"detector": key_fields(config, exclude=_PATHS)},
        inputs=dict(inputs),
        outputs=(DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES),
        work=partial(_train, config, runtime),
    )


def join(job: Job, runtime: RuntimeConfig) -> None:
    """Take part in the training of the main rank, without writing anything."""
    _train(
        DetectorConfig.model_validate(job.settings),
        runtime,
        job.path,
        Inputs({}),
        EventLog(job.path),
    )


def _train(
    config: DetectorConfig,
    runtime: RuntimeConfig,
    directory: Path,
    inputs: Inputs,
    events: EventLog,
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.training.detector.train import train_detector

    # as JSON: ranks on other machines receive it over the network, never as a pickle
    broadcast_job(Job(TRAIN_DETECTOR, config.model_dump(mode="json"), str(directory)))
    data = train_detector(config, runtime, directory=directory, events=events)
    return [*data.training.skipped, *data.validation.skipped]
