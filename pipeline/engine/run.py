"""Running a stage: key -> partial directory -> work -> manifest -> rename.

A finished directory is complete and never changes; only its presence marks a stage as done
(promise P1 in docs/promises.md).

A `Stage` declares; with the digests of its inputs it is a `PreparedStage`, whose `MadeFrom` is the
key. `StagePaths` are its directories, an `Outcome` its result, and its `Manifest` seals that.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from a2cap.data.errors import A2Error, InputError, LockedError
from a2cap.data.files.atomic import discard, rename_durably, write_durably
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.sealed_folder import (
    MANIFEST,
    MadeFrom,
    Manifest,
    publish,
    read_manifest,
    seal,
)
from a2cap.pipeline.engine.artifact_names import RESOLVED_CONFIG
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.explain import difference
from a2cap.pipeline.engine.inputs import Input, Inputs, Promised, file_state
from a2cap.pipeline.engine.lock import is_locked, lock_holder, read_lock, require_unread, stage_lock
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.shard_stripe import Stripe

logger = logging.getLogger(__name__)

MADE_FROM = "made_from.json"
"""File of a partial directory: what its work is made from, until the manifest states it."""


@dataclass(frozen=True)
class Outcome:
    """A finished stage: its directory, its manifest, and True in `ran` if this call ran it."""

    directory: Path
    manifest: Manifest
    ran: bool

    def as_input(self) -> Input:
        """Return the result as the input of another stage."""
        outputs, manifest = self.manifest.outputs, self.directory / MANIFEST
        files: dict[Path, Promised] = {
            self.directory / name: (output.sha256, None) for name, output in outputs.items()
        }
        # its list of skipped items is read too
        files[manifest] = (sha256_of(manifest), file_state(manifest))
        return Input(self.directory, self.manifest.digest, files)


def finished(stage: PreparedStage, paths: StagePaths) -> Outcome | None:
    """Return the stage's result unless it is to be replaced; A2Error if it has other settings."""
    if paths.forced or not paths.final.is_dir():
        return None
    manifest = read_manifest(paths.final)
    if manifest.made_from != stage.made_from:
        before = manifest.made_from
        changes = "no stage's result" if before is None else difference(before, stage.made_from)
        raise A2Error(
            f"{str(paths.final)!r} contains the result of other settings ({'; '.join(changes)}); "
            "name another path, or use --force to replace it"
        )
    return Outcome(paths.final, manifest, ran=False)


def run_stage(
    stage: PreparedStage, paths: StagePaths, *, resolved_config: str, force: bool = False
) -> Outcome:
    """Run `stage` unless its result exists; resume unfinished work of an earlier run.

    force: run again beside the old result, and replace it on success.

    Raises LockedError if another process runs the stage, and every error of its work. The partial
    directory then stays for the next run, with --force or without.
    """
    # before the lock, which needs the right to write
    resumed_paths = resumed(stage, paths, force=force)
    if (published := finished(stage, resumed_paths)) is not None:
        return published
    with name_in_disk_errors(paths.partial), stage_lock(paths.lock, what=stage.name):
        # again, because another process may have finished the stage since
        resumed_paths = resumed(stage, paths, force=force)
        if (published := finished(stage, resumed_paths)) is not None:
            return published
        if resumed_paths.forced:
            require_unread(resumed_paths.final)
            _make_room(stage, resumed_paths)
        return complete(stage, resumed_paths, resolved_config=resolved_config)


def resumed(stage: PreparedStage, paths: StagePaths, *, force: bool = False) -> StagePaths:
    """Return the paths at which a run works: those of an interrupted run with --force, if any."""
    forced = replace(paths, forced=True)
    try:
        earlier = unfinished(forced.partial)
    except A2Error:
        earlier = None
    # one of other settings cannot be resumed; one without settings was killed before any work
    return forced if force or earlier == stage.made_from else paths


def _make_room(stage: PreparedStage, paths: StagePaths) -> None:
    """Make room for a run with --force; raise LockedError if a part of the stage is running."""
    plain = replace(paths, forced=False)
    for unfinished in [plain] if resumed(stage, plain).forced else [plain, paths]:
        for lock in filter(is_locked, unfinished.part_locks()):
            raise LockedError(
                f"a part of {stage.name} is already running: {lock_holder(lock)}; "
                "wait for it, or stop it"
            )
        if unfinished.partial.exists():
            discard(unfinished.partial)
    # a run may have been killed between the two renames of _publish
    if paths.replaced.exists() and not paths.final.exists():
        rename_durably(paths.replaced, paths.final)


def complete(stage: PreparedStage, paths: StagePaths, *, resolved_config: str) -> Outcome:
    """Finish the work and publish it; the caller holds the stage's lock."""
    # A kill at any line leaves one of three states, and each has its way on: a partial directory
    # without a manifest (the work resumes), one with it (only the rename is missing), or the final
    # directory. Inputs are checked on both sides of the work, which may take days.
    prepare(stage, paths)
    partial = paths.partial
    # with a manifest, an earlier run died just before the rename
    if not (partial / MANIFEST).exists():
        events, inputs = EventLog(partial), Inputs(stage.inputs)
        write_durably(partial / RESOLVED_CONFIG, resolved_config.encode())
        read = read_lock(*(source.path for source in stage.inputs.values()))
        with read, events.running(stage=stage.name, key=stage.made_from.key) as end:
            started = time.monotonic()
            inputs.check()
            skipped = stage.work(partial, inputs, events)
            inputs.check()
            for item in skipped:
                events.skip(item.image_id, item.reason)
            seconds = round(time.monotonic() - started, 3)
            end["skipped"] = len(skipped)
        seal(partial, stage.outputs, made_from=stage.made_from, skipped=skipped, seconds=seconds)
    _publish(paths)
    return Outcome(paths.final, read_manifest(paths.final), ran=True)


def require_replaceable(output: Path, stage: str) -> None:
    """Raise InputError if `output` exists and is not a result of this stage."""
    if not output.exists():
        return
    try:
        made = read_manifest(output).made_from if output.is_dir() else None
    except A2Error:
        made = None
    if made is None or made.stage != stage:
        raise InputError(
            f"output {str(output)!r} exists and is not a result of {stage}; "
            "name a path that does not exist"
        )


@contextmanager
def name_in_disk_errors(folder: Path) -> Iterator[None]:
    """Add `folder` to each OSError of the block without a file name, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(folder)
        raise


def prepare(stage: PreparedStage, paths: StagePaths) -> None:
    """Create the partial directory, or resume the one of an earlier run.

    It may be complete, if that run died between manifest and rename. Raises A2Error if it belongs
    to other settings.
    """
    earlier = unfinished(paths.partial)
    if earlier is not None and earlier != stage.made_from:
        changes = "; ".join(difference(earlier, stage.made_from))
        raise A2Error(
            f"unfinished work of other settings in {str(paths.partial)!r} ({changes}); "
            "name another path, or use --force to discard it"
        )
    if earlier is not None:
        logger.info("%s: resuming an earlier run", stage.name)
        return
    if paths.forced:
        stage = replace(stage, note="", begin=None)
    logger.info("%s: %s", stage.name, stage.note or "starting")
    paths.partial.mkdir(parents=True, exist_ok=True)
    # before the file of the settings: without it, a killed copy is made again
    if stage.begin is not None:
        stage.begin(paths.partial)
    content = stage.made_from.model_dump_json(indent=1)
    write_durably(paths.partial / MADE_FROM, content.encode())


def unfinished(partial: Path) -> MadeFrom | None:
    """Return what the work in a partial directory is made from, or None if it has done none."""
    if (partial / MANIFEST).exists():
        return read_manifest(partial).made_from
    path = partial / MADE_FROM
    try:
        return MadeFrom.model_validate(json.loads(path.read_bytes())) if path.exists() else None
    except (OSError, ValueError) as error:
        what = str(error).splitlines()[0]
        raise A2Error(
            f"unfinished work is damaged: {str(path)!r} ({what}); "
            f"delete {str(partial)!r}, or use --force to discard it"
        ) from error


def _publish(paths: StagePaths) -> None:
    """Rename the finished work into place; an older result is set aside between two renames."""
    # no rename can replace a folder that has files
    (paths.partial / MADE_FROM).unlink(missing_ok=True)
    if paths.final.exists():
        shutil.rmtree(paths.replaced, ignore_errors=True)
        rename_durably(paths.final, paths.replaced)
    publish(paths.partial, paths.final)
    shutil.rmtree(paths.replaced, ignore_errors=True)


@dataclass(frozen=True)
class StripeOutcome:
    """A finished stripe; missing: parts of others that are not done, None: the stage if all are."""

    stripe: Stripe
    missing: int
    stage: Outcome | None


def run_stripe(
    stage: PreparedStage, paths: StagePaths, stripe: Stripe, *, resolved_config: str
) -> StripeOutcome:
    """Run one stripe of a stage, and publish the stage if all parts are done.

    Raises LockedError if another process runs the stage as a whole or one of these parts.
    """
    if stage.share is None:
        raise A2Error(f"stage {stage.name} cannot run in shards; run it without --shard")
    with name_in_disk_errors(paths.partial):
        with _one_at_a_time(paths):
            published = finished(stage, paths)
            if published is None:
                with stage_lock(paths.lock, what=stage.name):
                    # with a manifest, an earlier run died just before the rename
                    if (paths.partial / MANIFEST).exists():
                        published = complete(stage, paths, resolved_config=resolved_config)
                    else:
                        prepare(stage, paths)
            if published is not None:
                return StripeOutcome(stripe, 0, published)
        try:
            missing = _share(stage, paths, stripe)
        except (OSError, A2Error):
            # another stripe has seen that all parts are done, and has published the folder
            published = finished(stage, paths)
            if published is None:
                raise
            return StripeOutcome(stripe, 0, published)
        if missing:
            return StripeOutcome(stripe, missing, None)
        with _one_at_a_time(paths):
            outcome = run_stage(stage, paths, resolved_config=resolved_config)
            return StripeOutcome(stripe, 0, outcome)


def _share(stage: PreparedStage, paths: StagePaths, stripe: Stripe) -> int:
    """Do the parts of a stripe, with events of its own; return how many others are missing."""
    assert stage.share is not None
    folder = paths.partial / f"stripe-{stripe.number}-of-{stripe.count}"
    folder.mkdir(exist_ok=True)
    events, inputs = EventLog(folder), Inputs(stage.inputs)
    read = read_lock(*(source.path for source in stage.inputs.values()))
    log = events.running(stage=stage.name, key=stage.made_from.key, shard=str(stripe))
    with read, log:
        inputs.check()
        missing = stage.share(stripe, paths.partial, inputs, events)
        inputs.check()
    return missing


@contextmanager
def _one_at_a_time(paths: StagePaths) -> Iterator[None]:
    """Wait for other stripes that begin or end; a stage lock that is held is a run of the whole."""
    paths.stripes_lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(paths.stripes_lock):
        yield
