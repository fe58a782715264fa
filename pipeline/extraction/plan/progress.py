"""The progress of a plan, from its records alone: nothing of the workers is asked."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.features.parts import failed_images, read_done
from a2cap.pipeline.engine.progress import format_duration
from a2cap.pipeline.extraction.plan.plan import read_plan

_WINDOW = 3600.0
"""Seconds before the last record over which the rate is measured: workers come and go."""


@dataclass(frozen=True)
class PlanProgress:
    """Shards and images of a plan; rate: images per second, None before a record."""

    done: int
    shards: int
    images: int
    count: int
    failed: int
    rate: float | None

    @property
    def text(self) -> str:
        """The progress in one line."""
        parts = [
            f"{self.done:,} of {self.shards:,} shards done",
            f"{self.images:,} of {self.count:,} images",
            f"{self.failed:,} failed",
        ]
        if self.rate:
            parts.append(f"{self.rate:.1f} images/s")
            if self.done < self.shards:
                parts.append(f"{format_duration((self.count - self.images) / self.rate)} left")
        return ", ".join(parts)


def plan_progress(folder: Path) -> PlanProgress:
    """Return the progress of the plan in a folder; raise InputError if there is no plan."""
    plan = read_plan(folder)
    if plan is None:
        raise InputError(
            f'no plan in {str(folder)!r}; name the folder of "a2 extract --plan", or wait until '
            "its first worker has made it"
        )
    records = read_done(folder)
    shards = [records[task] for task in plan.tasks() if task in records]
    last = max((record.ended for record in shards), default=0.0)
    recent = [record for record in shards if record.ended >= last - _WINDOW]
    # from the beginning of the first to the end of the last of them
    seconds = last - min((record.ended - record.seconds for record in recent), default=last)
    images = sum(record.count + record.failed for record in shards)
    rate = sum(record.count + record.failed for record in recent) / seconds if seconds else None
    failed = len(failed_images(folder))
    return PlanProgress(len(shards), len(plan.offsets), images, plan.count, failed, rate)
