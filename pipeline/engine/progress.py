"""Progress of long work: a bar on a terminal or in a notebook, log lines, events in a stage."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any, TypeVar
from uuid import uuid4

from a2cap.pipeline.engine.events import EventLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Draw = Callable[[int, str], None]
"""Draws a bar: items done, and the time left."""

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_DRAWINGS = 0.1  # in a notebook; each is a message to the browser
_SHARE_BEFORE_ESTIMATE = 0.1  # unless lines are due: the first items often take the longest


@dataclass
class TrackedWork:
    """Work whose progress is shown and written to the stage's events; total: 0 if unknown.

    unit: of the items, whose number a second is shown too; "" if it is not.
    """

    what: str
    total: int
    done: int
    draw: _Draw | None
    events: EventLog | None
    unit: str = ""
    done_here: int = 0
    started: float = field(default_factory=time.monotonic)
    logged: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)

    def advance(self, count: int) -> None:
        """Add `count` finished items."""
        self.done += count
        self.done_here += count
        now = time.monotonic()
        if self.draw is not None:
            self.draw(self.done, self._left(now))
        elif now - self.logged >= _SECONDS_BETWEEN_LINES and self.done < (self.total or math.inf):
            self.logged = now
            done = f"{self.done} of {self.total}" if self.total else str(self.done)
            logger.info("%s: %s", self.what, ", ".join(filter(None, [done, self._left(now)])))
        if now - self.written >= _SECONDS_BETWEEN_LINES:
            self.write()

    def _left(self, now: float) -> str:
        """Format speed and time left; empty before a tenth of the work and 15 seconds are over."""
        # the speed is that of this run, without the work of an earlier one
        seconds, left = now - self.started, self.total - self.done
        speed = format_speed(self.done_here / max(seconds, 1e-3), self.unit) if self.unit else ""
        if not self.total:
            return speed
        share = self.done_here / max(left + self.done_here, 1)
        if seconds < _SECONDS_BETWEEN_LINES and share < _SHARE_BEFORE_ESTIMATE:
            return ""
        remaining = f"{format_duration(left * seconds / max(self.done_here, 1))} left"
        return ", ".join(filter(None, [speed, remaining]))

    def write(self) -> None:
        """Write a progress event."""
        self.written = time.monotonic()
        if self.events is not None:
            self.events.write("progress", what=self.what, done=self.done, total=self.total)


@contextmanager
def track(
    what: str,
    *,
    total: int,
    done: int = 0,
    shown: bool = True,
    events: EventLog | None = None,
    unit: str = "",
) -> Iterator[TrackedWork]:
    """Show the progress of the block, which calls `advance(count)` on the yielded object.

    total: 0 if it is unknown.
    shown: False on ranks other than 0, which must not draw a bar.
    events: of the stage that does the work, which get a line now and then.
    unit: such as "images", whose number a second is shown too.
    """
    with ExitStack() as drawing:
        draw, ipython = None, sys.modules.get("IPython")
        shell = ipython and ipython.get_ipython()
        if shown and sys.stderr.isatty():
            draw = drawing.enter_context(_terminal_bar(what, total, done))
        elif shown and hasattr(shell, "kernel"):  # of Jupyter
            draw = drawing.enter_context(_notebook_bar(shell, what, total, done))
        tracked = TrackedWork(what, total, done, draw, events, unit)
        tracked.write()
        yield tracked
        tracked.write()


@contextmanager
def _terminal_bar(what: str, total: int, done: int) -> Iterator[_Draw]:
    """Draw a bar on stderr, and erase it at the end."""
    from rich import console, progress

    text = progress.TextColumn
    bar = progress.Progress(
        text("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        text("{task.fields[left]}"),
        console=console.Console(stderr=True),
        transient=True,
        # rich prints the program's lines above the bar, on stderr, which is not where a file is
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=total or None, completed=done, left="")
        yield lambda done, left: bar.update(task, completed=done, left=left)


@contextmanager
def _notebook_bar(shell: Any, what: str, total: int, done: int) -> Iterator[_Draw]:
    """Draw a bar in the output of the cell that runs, and erase it at the end; shell: IPython's."""
    cell, drawn = {"display_id": uuid4().hex}, 0.0

    def show(text: str, bar: str, *, update: bool = True) -> None:
        data = {"text/plain": text, "text/html": f"{bar} {escape(text)}".strip()}
        shell.display_pub.publish(data, transient=cell, update=update)

    def draw(done: int, left: str) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _SECONDS_BETWEEN_DRAWINGS:
            value = f' value="{done}" max="{total}"' if total else ""
            text, bar = f"{what} {done}/{total or '?'} {left}", f"<progress{value}></progress>"
            show(text.rstrip(), bar, update=drawn > 0)
            drawn = time.monotonic()

    draw(done, "")
    try:
        yield draw
    finally:
        show("", "")


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


def format_speed(per_second: float, unit: str) -> str:
    """Format a number of items a second, or of slow ones a minute or an hour: `2.5 images/s`."""
    seconds, name = next(
        ((s, name) for s, name in ((1, "s"), (60, "min")) if s * per_second >= 0.1), (3600, "h")
    )
    return f"{seconds * per_second:.1f} {unit}/{name}"


def format_bytes(count: int) -> str:
    """Format a number of bytes with three digits: `512 B`, `18.2 GB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:  # more would be rounded to 1000
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
