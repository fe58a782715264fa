"""Stages in shards: one process per shard; the last one to finish publishes the result.

A process holds its shard's lock while it works, and the stage's lock only briefly before and after.
Processes wait for that brief lock at a separate lock file. A taken stage lock therefore means a run
without shards, which is refused immediately.
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
from a2cap.pipeline.engine.artifacts import MANIFEST
from a2cap.pipeline.engine.lock import is_locked, stage_lock
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

    skipped: number of items that this shard skipped; waiting: unfinished shards; stage: the
    published stage, once all shards are finished.
    """

    shard: Shard
    skipped: int
    waiting: list[Shard]
    stage: Outcome | None


def run_shard(
    stage: Stage, paths: StagePaths, shard: Shard, *, resolved_config: str, force: bool = False
) -> ShardOutcome:
    """Run one shard unless it is finished, and publish the stage after the last one.

    force: run the shard again, beside an old result of the stage.

    Raises LockedError if another process runs this shard, or the stage without shards.
    """
    work = stage.shards
    if work is None:
        raise A2Error(f"stage {stage.name} cannot run in shards; run it without --shard")
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
        # another process may have published since this shard was sealed
        if not paths.partial.exists():
            return ShardOutcome(shard, skipped, [], finished(stage, paths))
        waiting = _waiting(paths, paths.partial / work.output, shard.count)
        outcome = None if waiting else complete(stage, paths, resolved_config=resolved_config)
        return ShardOutcome(shard, skipped, waiting, outcome)


def wait_for_lock(lock: Path) -> FileLock:
    """Return the lock of a file, as a context that waits while another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(lock)


@contextmanager
def _locked(stage: Stage, paths: StagePaths) -> Iterator[None]:
    """Hold the stage's lock; raise LockedError if the stage runs without shards."""
    with (
        wait_for_lock(paths.final.with_name(f"{paths.final.name}.shards.lock")),
        stage_lock(paths.lock, what=stage.name),
    ):
        yield


def _prepare_shard(
    stage: Stage, work: ShardWork, paths: StagePaths, shard: Shard, *, force: bool
) -> Path:
    """Create the shard's folder in the partial directory, or resume the existing one."""
    folder = paths.partial / work.output / shard.folder
    if force:
        earlier = unfinished(paths.partial)
        if earlier is not None and earlier.key == stage.pre_image.key:
            # Delete the marks of completion first: a crash must not leave half a shard sealed.
            (paths.partial / MANIFEST).unlink(missing_ok=True)
            (folder / SEAL_FILE).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            require_no_running_shard(stage, paths, but=shard)
            discard(paths.partial)
    prepare(stage, paths)
    _require_same_shard_count(paths, folder.parent, shard)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_same_shard_count(paths: StagePaths, output: Path, shard: Shard) -> None:
    if (output / DATA_FILE).exists():
        raise A2Error(
            f"unfinished work in {str(paths.partial)!r} has no shards; "
            "finish it without --shard, or delete it"
        )
    counts = {found.count for found in shards_in(output)} - {shard.count}
    if counts:
        raise A2Error(
            f"unfinished work in {str(paths.partial)!r} has {min(counts)} shards, "
            f"not {shard.count}; use {min(counts)} shards, or delete it"
        )


def _waiting(paths: StagePaths, output: Path, count: int) -> list[Shard]:
    """List the shards that are not sealed or that a process works on."""
    # a sealed shard may be running again, with --force
    shards = [Shard(number, count) for number in range(count)]
    return [
        shard
        for shard in shards
        if not (output / shard.folder / SEAL_FILE).exists() or is_locked(paths.shard_lock(shard))
    ]
