"""A stage done in shards: each by a process of its own, published by the one that ends last.

A process holds its shard's lock while it works, and the stage's lock only for the moments before
and after; those who wait for such a moment queue at a lock of their own. So whoever finds the
stage's lock taken meets a run that is not in shards, and that is refused at once.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from a2cap.data.errors import A2Error
from a2cap.data.features.seal import DATA_FILE, SEAL_FILE
from a2cap.data.features.shard import Shard, shards_in
from a2cap.data.files.atomic import discard
from a2cap.pipeline.engine.lock import is_locked, stage_lock
from a2cap.pipeline.engine.manifest import FILE_NAME as MANIFEST
from a2cap.pipeline.engine.run import (
    Outcome,
    complete,
    finished,
    name_in_disk_errors,
    prepare,
    require_no_running_shard,
    unfinished,
)
from a2cap.pipeline.engine.stage import EventLog, ShardWork, Stage, StagePaths


@dataclass(frozen=True)
class ShardOutcome:
    """A finished shard.

    skipped: bad items of this shard that were left out; waiting: shards that are not finished;
    stage: the whole stage, once all shards are.
    """

    shard: Shard
    skipped: int
    waiting: list[Shard]
    stage: Outcome | None


def run_shard(
    stage: Stage, paths: StagePaths, shard: Shard, *, resolved_config: str, force: bool = False
) -> ShardOutcome:
    """Does one shard unless it is there, resuming what an earlier run left; publishes the last.

    With `force` the shard is made again, beside an old result of the stage. Raises LockedError
    where another process is at this shard, or at the stage without shards.
    """
    work = stage.shards
    if work is None:
        raise A2Error(f"{stage.name} is not done in shards; run it as a whole")
    with name_in_disk_errors(paths.partial), ExitStack() as working:
        with _locked(stage, paths):
            found = None if force else finished(stage, paths)
            if found is not None:
                return ShardOutcome(shard, 0, [], found)
            what = f"shard {shard} of {stage.name}"
            working.enter_context(stage_lock(paths.shard_lock(shard), what=what))
            folder = _prepare_shard(stage, work, paths, shard, force=force)
        events = EventLog(folder)
        with events.running(stage=stage.name, key=stage.pre_image.key, shard=str(shard)) as end:
            skipped = len(work.fill(shard, paths.partial, events))
            end.update(shard=str(shard), skipped=skipped)
    with name_in_disk_errors(paths.partial), _locked(stage, paths):
        if not paths.partial.exists():
            return ShardOutcome(shard, skipped, [], finished(stage, paths))
        waiting = _waiting(paths, paths.partial / work.output, shard.count)
        outcome = None if waiting else complete(stage, paths, resolved_config=resolved_config)
        return ShardOutcome(shard, skipped, waiting, outcome)


@contextmanager
def wait_for_lock(lock: Path) -> Iterator[None]:
    """Holds a lock file for the block, after waiting for those who hold it for moments."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        yield


@contextmanager
def _locked(stage: Stage, paths: StagePaths) -> Iterator[None]:
    """Holds the stage's lock; LockedError where the stage runs without shards."""
    with (
        wait_for_lock(paths.final.with_name(f"{paths.final.name}.shards.lock")),
        stage_lock(paths.lock, what=stage.name),
    ):
        yield


def _prepare_shard(
    stage: Stage, work: ShardWork, paths: StagePaths, shard: Shard, *, force: bool
) -> Path:
    """Makes the shard's folder in the partial directory, or takes up what is there."""
    folder = paths.partial / work.output / shard.folder
    if force:
        begun = unfinished(paths.partial)
        if begun is not None and begun.key == stage.pre_image.key:
            # what says that they are finished goes first, lest a crash leave half of one so named
            (paths.partial / MANIFEST).unlink(missing_ok=True)
            (folder / SEAL_FILE).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            require_no_running_shard(stage, paths, but=shard)
            discard(paths.partial)
    prepare(stage, paths)
    _require_same_division(paths, folder.parent, shard)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_same_division(paths: StagePaths, output: Path, shard: Shard) -> None:
    if (output / DATA_FILE).exists():
        raise A2Error(
            f"unfinished work in {str(paths.partial)!r} is not in shards; "
            "finish it without --shard, or remove it"
        )
    counts = {found.count for found in shards_in(output)} - {shard.count}
    if counts:
        raise A2Error(
            f"unfinished work in {str(paths.partial)!r} is in shards of {min(counts)}, "
            f"not of {shard.count}; finish it so, or remove it"
        )


def _waiting(paths: StagePaths, output: Path, count: int) -> list[Shard]:
    """The shards that are not sealed, or that a process is at."""
    shards = [Shard(number, count) for number in range(count)]
    return [
        shard
        for shard in shards
        if not (output / shard.folder / SEAL_FILE).exists() or is_locked(paths.shard_lock(shard))
    ]
