"""Stage train-xe: a captioner trained by cross-entropy and the mask loss."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.model.config import ModelConfig
from a2cap.pipeline.captioning.model_description import (
    captioner_outputs,
)
from a2cap.pipeline.engine.artifacts import TRAIN_XE
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Job, broadcast_job
from a2cap.pipeline.training.captioner.config import CrossEntropyJob, TrainConfig

CODE_VERSION = 4


def train_stage(
    config: TrainConfig,
    model: ModelConfig,
    *,
    inputs: Mapping[str, Input],
    runtime: RuntimeConfig,
) -> PreparedStage:
    """Return the stage.

    inputs: `features`, a feature store, preprocessed `captions` and optionally `start`.
    """
    paths = {name: inputs[name].path for name in ("features", "captions")}
    job = CrossEntropyJob(train=config, model=model, **paths)
    return PreparedStage(
        name=TRAIN_XE,
        version=CODE_VERSION,
        fields={"train": key_fields(config, exclude={"start"}), "model": key_fields(model)},
        inputs=inputs,
        outputs=captioner_outputs(inputs["features"].path),
        work=partial(_train, job, runtime),
    )


def join(job: Job, runtime: RuntimeConfig) -> None:
    """Take part in the training of the main rank, without writing anything."""
    _train(
        CrossEntropyJob.model_validate(job.settings),
        runtime,
        job.path,
        Inputs({}),
        EventLog(job.path),
    )


def _train(
    job: CrossEntropyJob, runtime: RuntimeConfig, directory: Path, inputs: Inputs, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.training.captioner.cross_entropy import train_captioner

    broadcast_job(Job(TRAIN_XE, job.model_dump(mode="json"), str(directory)))
    train_captioner(job, runtime, directory=directory, events=events)
    return []
