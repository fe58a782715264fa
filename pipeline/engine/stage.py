"""Stages: named pieces of work with declared parameters, inputs and outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.features.shard import Shard
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.engine.events import EventLog as EventLog  # noqa: PLC0414
from a2cap.pipeline.engine.inputs import Input as Input  # noqa: PLC0414
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.lock import lock_folder

Work = Callable[[Path, EventLog], Sequence[SkippedItem]]
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
class Stage:
    """A stage, ready to run.

    outputs: name of a declared output -> function from its path to its logical digest.
    work: bound to its own config model and inputs, so that it cannot read any other setting.
    shards: set if the stage can run in shards; their number is not part of the key.
    note: how a first run starts, for status and log; begin: copies the
    checkpoints of a shorter training. With --force, both are ignored.
    """

    name: str
    code_version: int
    params: Mapping[str, object]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Callable[[Path], str]]
    work: Work
    shards: ShardWork | None = None
    note: str = ""
    begin: Callable[[Path], None] | None = None

    @property
    def pre_image(self) -> PreImage:
        """The content of the stage's key."""
        return PreImage(
            stage=self.name,
            code_version=self.code_version,
            params=self.params,
            inputs={name: found.digest for name, found in self.inputs.items()},
        )


def plain_outputs(*names: str) -> dict[str, Callable[[Path], str]]:
    """Declare outputs whose digest is that of the file's bytes."""
    return dict.fromkeys(names, sha256_of)


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
    def in_artifacts(cls, artifacts: Path, stage: Stage) -> "StagePaths":
        """Return the default paths, at artifacts/<stage>/<key>/."""
        return cls.of_result(artifacts / stage.name / stage.pre_image.key)

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
        folders = {self.final.parent, self.locks or self.final.parent}  # of earlier versions too
        for name in sorted(path.name for folder in folders for path in folder.glob("*.lock")):
            shard = Shard.of_folder(name.removesuffix(".lock").removeprefix(prefix))
            if shard is not None and name.startswith(prefix):
                found[shard] = self.shard_lock(shard)
        return found

    def _lock(self, ending: str) -> Path:
        return (self.locks or self.final.parent) / f"{self.final.name}.{ending}"
