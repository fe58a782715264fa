"""Stages in shards: one process per shard; the last one to finish publishes the result.

A process holds its shard's lock while it works, and the stage's lock only briefly before and after.
Processes wait for that brief lock at a separate lock file. A taken stage lock therefore means a run
without shards, which is rejected immediately.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from a2cap.data.errors import A2Error
from a2cap.data.features.seal import DATA_FILE, SEAL_FILE
from a2cap.data.features.shard import Shard, shards_in
from a2cap.pipeline.engine.inputs import Inputs, promised_inputs
from a2cap.pipeline.engine.lock import is_locked, stage_lock
from a2cap.pipeline.engine.run import (
    Outcome,
    complete,
    finished,
    name_in_disk_errors,
    prepare,
    prepare_forced,
    published,
    resumed,
)
from a2cap.pipeline.engine.stage import EventLog, PreparedStage, StagePaths


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
    stage: PreparedStage,
    paths: StagePaths,
    shard: Shard,
    *,
    resolved_config: str,
    force: bool = False,
) -> ShardOutcome:
    """Run one shard unless it is finished, and publish the stage after the last one.

    force: run the stage again beside its old result, this shard unless it is already done.

    Raises LockedError if another process runs this shard, or the stage without shards.
    """
    work = stage.shards
    if work is None:
        raise A2Error(f"stage {stage.name} cannot run in shards; run it without --shard")
    with name_in_disk_errors(paths.partial), ExitStack() as working:
        with _locked(stage, paths):
            found = published(stage, paths, force=force)
            if found is not None:
                return ShardOutcome(shard, 0, [], found)
            what = f"shard {shard} of {stage.name}"
            working.enter_context(stage_lock(paths.shard_lock(shard), what=what))
            paths = prepare_forced(stage, resumed(stage, paths, force=force), but=shard)
            prepare(stage, paths)
            output = paths.partial / work.output
            _require_same_shard_count(paths, output, shard)
            folder = output / shard.folder
            folder.mkdir(parents=True, exist_ok=True)
        events = EventLog(folder)
        with events.running(stage=stage.name, key=stage.made_from.key, shard=str(shard)) as end:
            with promised_inputs(Inputs(stage.inputs)):
                skipped = len(work.fill(shard, paths.partial, events))
            end.update(shard=str(shard), skipped=skipped)
    with name_in_disk_errors(paths.partial), _locked(stage, paths):
        # another process may have published since this shard was sealed
        if not paths.partial.exists():
            return ShardOutcome(shard, skipped, [], finished(stage, paths))
        waiting = _waiting(paths, output, shard.count)
        outcome = None if waiting else complete(stage, paths, resolved_config=resolved_config)
        return ShardOutcome(shard, skipped, waiting, outcome)


def wait_for_lock(lock: Path) -> FileLock:
    """Return the lock of a file, as a context that waits while another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(lock)


@contextmanager
def _locked(stage: PreparedStage, paths: StagePaths) -> Iterator[None]:
    """Hold the stage's lock; raise LockedError if the stage runs without shards."""
    with (
        wait_for_lock(paths.shards_lock),
        stage_lock(paths.lock, what=stage.name),
    ):
        yield


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
    # the process that sealed a shard may still write its events
    shards = [Shard(number, count) for number in range(count)]
    return [
        shard
        for shard in shards
        if not (output / shard.folder / SEAL_FILE).exists() or is_locked(paths.shard_lock(shard))
    ]
