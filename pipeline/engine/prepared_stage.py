"""A stage that is ready to run, and the paths of its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2cap.data.files.sealed_folder import MadeFrom, SkippedItem
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.lock import LOCKS
from a2cap.pipeline.engine.shard_stripe import Stripe

Work = Callable[[Path, Inputs, EventLog], Sequence[SkippedItem]]
"""Fills a partial directory, resuming the work found there; returns the skipped items."""


@dataclass(frozen=True)
class PreparedStage:
    """A stage with its settings and its inputs, ready to run.

    outputs: names of the files and sealed folders that the work leaves.
    work: bound to its own settings, so that it cannot read any other.
    share: set if several processes can share the work; it does a stripe and returns the number of
        parts that are then missing. The number of processes is not part of the key.
    note: how a first run starts, for status and log.
    begin: copies the checkpoints of a shorter training.
    With --force, the last two are ignored.
    """

    name: str
    version: int
    fields: Mapping[str, Any]
    inputs: Mapping[str, Input]
    outputs: Sequence[str]
    work: Work
    share: Callable[[Stripe, Path, Inputs, EventLog], int] | None = None
    note: str = ""
    begin: Callable[[Path], None] | None = None

    @property
    def made_from(self) -> MadeFrom:
        """The content of the stage's key."""
        inputs = {name: source.digest for name, source in self.inputs.items()}
        return MadeFrom(stage=self.name, version=self.version, fields=self.fields, inputs=inputs)


@dataclass(frozen=True)
class StagePaths:
    """Paths of a stage's result: finished, partial, replaced, and its locks.

    forced: True for a run with --force, which has a partial directory of its own. shared: True in
    an artifacts folder, whose locks are in one folder; others are beside their results.
    """

    final: Path
    forced: bool = False
    shared: bool = False

    @classmethod
    def in_artifacts(cls, artifacts: Path, stage: PreparedStage) -> "StagePaths":
        """Return the default paths, at artifacts/<stage>/<key>/."""
        return cls(artifacts / stage.name / stage.made_from.key, shared=True)

    @property
    def partial(self) -> Path:
        """Directory of unfinished work."""
        ending = ".forced.partial" if self.forced else ".partial"
        return self.final.with_name(f"{self.final.name}{ending}")

    @property
    def replaced(self) -> Path:
        """Path of the old result while a new one is renamed into place."""
        return self.final.with_name(f"{self.final.name}.replaced")

    @property
    def lock(self) -> Path:
        """Lock file of the stage."""
        # never deleted by a run: another process could hold the file without its name
        folder = self.final.parent
        locks = folder.parent / LOCKS / folder.name if self.shared else folder
        return locks / f"{self.final.name}.lock"

    @property
    def stripes_lock(self) -> Path:
        """Lock file that the processes of stripes wait for."""
        return self.lock.with_name(f"{self.final.name}.stripes.lock")

    def part_locks(self) -> list[Path]:
        """Return the lock files of the parts that processes work on, held or not."""
        return sorted(self.partial.glob("*/*.lock"))
