"""Stage train-scst: self-critical training of the captioner from train-xe."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.captioning.model_description import (
    captioner_outputs,
)
from a2cap.pipeline.engine.artifacts import TRAIN_SCST
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Job, broadcast_job
from a2cap.pipeline.training.captioner.config import ScstConfig, SelfCriticalJob

CODE_VERSION = 2


def train_scst_stage(
    config: ScstConfig, *, inputs: Mapping[str, Input], runtime: RuntimeConfig
) -> PreparedStage:
    """Return the stage; inputs: those of train-xe, and `model`, its captioner."""
    job = SelfCriticalJob(scst=config, **{name: found.path for name, found in inputs.items()})
    return PreparedStage(
        name=TRAIN_SCST,
        version=CODE_VERSION,
        fields={"scst": key_fields(config)},
        inputs=inputs,
        outputs=captioner_outputs(inputs["features"].path),
        work=partial(_refine, job, runtime),
    )


def join(job: Job, runtime: RuntimeConfig) -> None:
    """Take part in the training of the main rank, without writing anything."""
    _refine(
        SelfCriticalJob.model_validate(job.settings),
        runtime,
        job.path,
        Inputs({}),
        EventLog(job.path),
    )


def _refine(
    job: SelfCriticalJob, runtime: RuntimeConfig, directory: Path, inputs: Inputs, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.training.captioner.self_critical import refine_captioner

    broadcast_job(Job(TRAIN_SCST, job.model_dump(mode="json"), str(directory)))
    refine_captioner(job, runtime, directory=directory, events=events)
    return []
