"""Running a stripe of a stage whose work several processes share.

Each process publishes its parts by itself; the one that finds all of them done publishes the stage.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from filelock import FileLock

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.lock import reading, stage_lock
from a2cap.pipeline.engine.run import Outcome, finished, name_in_disk_errors, prepare, run_stage
from a2cap.pipeline.engine.stage import EventLog, PreparedStage, StagePaths
from a2cap.pipeline.engine.stripe import Stripe


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
            found = finished(stage, paths)
            if found is not None:
                return StripeOutcome(stripe, 0, found)
            with stage_lock(paths.lock, what=stage.name):
                prepare(stage, paths)
        folder = paths.partial / f"stripe-{stripe.number}-of-{stripe.count}"
        folder.mkdir(exist_ok=True)
        events, inputs = EventLog(folder), Inputs(stage.inputs)
        read = reading(*(one.path for one in stage.inputs.values()))
        log = events.running(stage=stage.name, key=stage.made_from.key, shard=str(stripe))
        with read, log, inputs.checked():
            missing = stage.share(stripe, paths.partial, inputs, events)
        if missing:
            return StripeOutcome(stripe, missing, None)
        with _one_at_a_time(paths):
            outcome = run_stage(stage, paths, resolved_config=resolved_config)
            return StripeOutcome(stripe, 0, outcome)


@contextmanager
def _one_at_a_time(paths: StagePaths) -> Iterator[None]:
    """Wait for other stripes that begin or end; a stage lock that is held is a run of the whole."""
    paths.stripes_lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(paths.stripes_lock):
        yield
