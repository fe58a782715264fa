"""A stage that is ready to run, and the paths of its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from a2cap.data.features.shard import Shard
from a2cap.data.files.sealed_folder import MadeFrom, SkippedItem
from a2cap.pipeline.engine.events import EventLog as EventLog  # noqa: PLC0414
from a2cap.pipeline.engine.inputs import Input as Input  # noqa: PLC0414
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.lock import lock_folder

Work = Callable[[Path, Inputs, EventLog], Sequence[SkippedItem]]
"""Fills a partial directory, resuming the work found there; returns the skipped items."""


@dataclass(frozen=True)
class ShardWork:
    """The part of a stage that one process does for one shard.

    output: name of the output made in shards; fill: writes and seals the folder of a shard in a
    partial directory, and returns the skipped items. The stage's `work` joins the shards.
    """

    output: str
    fill: Callable[[Shard, Path, EventLog], Sequence[SkippedItem]]


@dataclass(frozen=True)
class PreparedStage:
    """A stage with its settings and its inputs, ready to run.

    outputs: names of the files and sealed folders that the work leaves.
    work: bound to its own settings, so that it cannot read any other.
    shards: set if the stage can run in shards; their number is not part of the key.
    note: how a first run starts, for status and log; begin: copies the
    checkpoints of a shorter training. With --force, both are ignored.
    """

    name: str
    version: int
    fields: dict[str, JsonValue]
    inputs: Mapping[str, Input]
    outputs: Sequence[str]
    work: Work
    shards: ShardWork | None = None
    note: str = ""
    begin: Callable[[Path], None] | None = None

    @property
    def made_from(self) -> MadeFrom:
        """The content of the stage's key."""
        inputs = {name: found.digest for name, found in self.inputs.items()}
        return MadeFrom(stage=self.name, version=self.version, fields=self.fields, inputs=inputs)


@dataclass(frozen=True)
class StagePaths:
    """Paths of a stage's result: finished, partial, replaced, and its locks.

    forced: True for a run with --force, which has a partial directory of its own. locks: folder of
    the locks, by default that of the result.
    """

    final: Path
    forced: bool = False
    locks: Path | None = None

    @classmethod
    def in_artifacts(cls, artifacts: Path, stage: PreparedStage) -> "StagePaths":
        """Return the default paths, at artifacts/<stage>/<key>/."""
        return cls.of_result(artifacts / stage.name / stage.made_from.key)

    @classmethod
    def of_result(cls, final: Path) -> "StagePaths":
        """Return the paths of a result in an artifacts folder."""
        return cls(final, locks=lock_folder(final))

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
        return self._lock("lock")

    @property
    def shards_lock(self) -> Path:
        """Lock file that the processes of shards wait for."""
        return self._lock("shards.lock")

    def shard_lock(self, shard: Shard) -> Path:
        """Return the lock file of one shard."""
        return self._lock(f"{shard.folder}.lock")

    def shard_locks(self) -> dict[Shard, Path]:
        """Find the lock files of all shards ever started here, held or not."""
        # found by name, because the number of shards is in no setting
        prefix, found = f"{self.final.name}.", {}
        folder = self.locks or self.final.parent
        for name in sorted(path.name for path in folder.glob("*.lock")):
            shard = Shard.of_folder(name.removesuffix(".lock").removeprefix(prefix))
            if shard is not None and name.startswith(prefix):
                found[shard] = self.shard_lock(shard)
        return found

    def _lock(self, ending: str) -> Path:
        return (self.locks or self.final.parent) / f"{self.final.name}.{ending}"
