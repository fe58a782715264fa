"""Stage train-scst: self-critical training of the captioner from train-xe."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.pipeline.engine.artifacts import CAPTIONER, TRAIN_SCST
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import Job, broadcast_job
from a2cap.pipeline.training.captioner.config import ScstConfig, SelfCriticalJob

CODE_VERSION = 2


def train_scst_stage(
    config: ScstConfig, *, inputs: Mapping[str, Input], runtime: RuntimeConfig
) -> Stage:
    """Return the stage; inputs: those of train-xe, and `model`, its captioner."""
    job = SelfCriticalJob(scst=config, **{name: found.path for name, found in inputs.items()})
    return Stage(
        name=TRAIN_SCST,
        code_version=CODE_VERSION,
        params={"scst": key_fields(config)},
        inputs=inputs,
        outputs=plain_outputs(*CAPTIONER),
        work=partial(_refine, job, runtime),
    )


def join(job: Job, runtime: RuntimeConfig) -> None:
    """Take part in the training of the main rank, without writing anything."""
    _refine(SelfCriticalJob.model_validate(job.settings), runtime, job.path, EventLog(job.path))


def _refine(
    job: SelfCriticalJob, runtime: RuntimeConfig, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.training.captioner.self_critical import refine_captioner

    broadcast_job(Job(TRAIN_SCST, job.model_dump(mode="json"), str(directory)))
    refine_captioner(job, runtime, directory=directory, events=events)
    return []
