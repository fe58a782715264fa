"""Progress of long work: a bar on a terminal, log lines elsewhere, events inside a stage."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from a2cap.pipeline.engine.events import EventLog

if TYPE_CHECKING:
    from rich.progress import Progress

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 15.0
_SHARE_BEFORE_ESTIMATE = 0.1  # unless lines are due: the first items often take the longest


@dataclass
class TrackedWork:
    """Work whose progress is shown and written to the stage's events."""

    what: str
    total: int
    done: int
    bar: "Progress | None"
    events: EventLog | None
    done_here: int = 0
    started: float = field(default_factory=time.monotonic)
    logged: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)

    def advance(self, count: int) -> None:
        """Add `count` finished items."""
        self.done += count
        self.done_here += count
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done, left=self._left(now))
        elif now - self.logged >= _SECONDS_BETWEEN_LINES and self.done < self.total:
            self.logged = now
            left = self._left(now)
            logger.info("%s: %d of %d, %s", self.what, self.done, self.total, left)
        if now - self.written >= _SECONDS_BETWEEN_LINES:
            self.write()

    def _left(self, now: float) -> str:
        """Format the time left; empty before a tenth of the work and 15 seconds are over."""
        # the speed is that of this run, without the work of an earlier one
        seconds, left = now - self.started, self.total - self.done
        share = self.done_here / max(left + self.done_here, 1)
        if seconds < _SECONDS_BETWEEN_LINES and share < _SHARE_BEFORE_ESTIMATE:
            return ""
        return f"{format_duration(left * seconds / max(self.done_here, 1))} left"

    def write(self) -> None:
        """Write a progress event."""
        self.written = time.monotonic()
        if self.events is not None:
            self.events.write("progress", what=self.what, done=self.done, total=self.total)


@contextmanager
def track(
    what: str, *, total: int, done: int = 0, shown: bool = True, events: EventLog | None = None
) -> Iterator[TrackedWork]:
    """Show the progress of the block, which calls `advance(count)` on the yielded object.

    shown: False on ranks other than 0, which must not draw a bar. events: of the stage that does
    the work, which get a line now and then.
    """
    with ExitStack() as drawing:
        bar = None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            left = TextColumn("{task.fields[left]}")
            bar = Progress(*columns, left, console=Console(stderr=True), transient=True)
            drawing.enter_context(bar).add_task(what, total=total, completed=done, left="")
        tracked = TrackedWork(what, total, done, bar, events)
        tracked.write()
        yield tracked
        tracked.write()


def advance_after_each(items: Iterable[T], advance: Callable[[int], None]) -> Iterator[T]:
    """Yield the items and call `advance(1)` after each."""
    for item in items:
        yield item
        advance(1)


def format_duration(seconds: float) -> str:
    """Format seconds: `42 s`, `3 min 20 s`, `5 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
