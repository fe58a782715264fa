"""What a stage is: a named piece of work with declared parameters, inputs and outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.features.shard import Shard
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.engine.events import EventLog as EventLog  # noqa: PLC0414
from a2cap.pipeline.engine.key import PreImage


@dataclass(frozen=True)
class Input:
    """Something that a stage reads: where it is, and the digest of what it holds."""

    path: Path
    digest: str


Work = Callable[[Path, EventLog], Sequence[SkippedItem]]
"""Fills a partial directory, skipping what it finds done there; returns the bad items left out."""


@dataclass(frozen=True)
class ShardWork:
    """How a declared output is made in shards, each by a process of its own.

    output: its name; fill: makes and seals the folder of a shard in it, in a partial directory, and
    returns the bad items left out. The stage's `work` joins the shards that it finds.
    """

    output: str
    fill: Callable[[Shard, Path, EventLog], Sequence[SkippedItem]]


@dataclass(frozen=True)
class Stage:
    """A stage, ready to run.

    outputs: name of a declared output -> function from its path to its logical digest.
    work: already bound to its own config model and inputs, so it cannot read any other setting.
    shards: where the stage can also be done in shards; their number is in no key.
    """

    name: str
    code_version: int
    params: Mapping[str, object]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Callable[[Path], str]]
    work: Work
    shards: ShardWork | None = None

    @property
    def pre_image(self) -> PreImage:
        """What the stage's key is made of."""
        return PreImage(
            stage=self.name,
            code_version=self.code_version,
            params=self.params,
            inputs={name: found.digest for name, found in self.inputs.items()},
        )


def plain_outputs(*names: str) -> dict[str, Callable[[Path], str]]:
    """Declares files whose bytes are their logical content."""
    return dict.fromkeys(names, sha256_of)


@dataclass(frozen=True)
class StagePaths:
    """Where a stage's result lies: finished, in the making, and its lock."""

    final: Path

    @classmethod
    def in_artifacts(cls, artifacts: Path, stage: Stage) -> "StagePaths":
        """The usual place: artifacts/<stage>/<key12>/."""
        return cls(artifacts / stage.name / stage.pre_image.key)

    @property
    def partial(self) -> Path:
        """The directory of unfinished work."""
        return self.final.with_name(f"{self.final.name}.partial")

    @property
    def replaced(self) -> Path:
        """Where an older result is set aside while a newer one takes its place."""
        return self.final.with_name(f"{self.final.name}.replaced")

    @property
    def lock(self) -> Path:
        """The kernel lock's file; it is never deleted, because that would race."""
        return self.final.with_name(f"{self.final.name}.lock")

    def shard_lock(self, shard: Shard) -> Path:
        """The lock of the process that works on one shard."""
        return self.final.with_name(f"{self.final.name}.{shard.folder}.lock")

    def shard_locks(self) -> dict[Shard, Path]:
        """The locks of all shards that were ever begun here, held or not."""
        prefix, found = f"{self.final.name}.", {}
        for path in sorted(self.final.parent.glob("*.lock")):
            shard = Shard.of_folder(path.stem.removeprefix(prefix))
            if shard is not None and path.name.startswith(prefix):
                found[shard] = path
        return found
