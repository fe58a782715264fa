"""Status of a stage: done, running, partial or to run, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.artifact_names import TRAIN_DETECTOR, TRAIN_ENCODER, TRAIN_SCST, TRAIN_XE
from a2cap.pipeline.engine.explain import nearest_difference
from a2cap.pipeline.engine.lock import is_locked, lock_holder
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import finished, resumed

COMMANDS = {
    TRAIN_XE: "train --phase xe",
    TRAIN_SCST: "train --phase scst",
    TRAIN_DETECTOR: "detector train",
    TRAIN_ENCODER: "train --task encoder",
}
"""Commands of stages that have not their name, after "a2"."""


class UnfinishedStageError(A2Error):
    """Raised if a stage needs the result of a stage that is not finished."""

    def __init__(self, stage: str, waits_for: str) -> None:
        command = COMMANDS.get(waits_for, waits_for)
        super().__init__(
            f'{stage} needs {waits_for}, which is not finished; run "a2 {command}" or "a2 run"'
        )
        self.waits_for = waits_for


@dataclass(frozen=True)
class Status:
    """Status of a stage.

    state: done, running, partial, to run, waiting, or blocked by a missing input. why: reasons for
    a run, or remarks about the result.
    """

    stage: str
    state: str
    directory: Path | None
    why: list[str]


def status_of(
    stage: PreparedStage, paths: StagePaths, results: Path, *, remarks: Callable[[Path], list[str]]
) -> Status:
    """Return the status of a stage and the reasons for a run.

    results: folder of its results.
    remarks: describes one, or the work in a partial directory.
    """
    name, locks = stage.name, [paths.lock, *paths.part_locks()]
    holders = [lock_holder(lock) for lock in locks if is_locked(lock)]
    if holders:
        done = remarks(paths.partial) if paths.partial.is_dir() else []
        return Status(name, "running", paths.partial, [*holders, *done])
    paths = resumed(stage, paths)
    if paths.forced:
        return Status(name, "partial", paths.partial, ["interrupted run with --force"])
    if finished(stage, paths) is not None:
        return Status(name, "done", paths.final, remarks(paths.final))
    why = nearest_difference(results, stage.made_from) or ["no earlier result"]
    if paths.partial.is_dir():
        return Status(name, "partial", paths.partial, [*why, *remarks(paths.partial)])
    return Status(name, "to run", None, [*why, stage.note] if stage.note else why)
