"""Machine-readable log of a stage: `events.jsonl`, one JSON object per line.

Every event has `time` (seconds since the epoch) and `event`, its type:

- `start`: `stage`, `key`, `pid`, `host`, and `shard` if the run is one shard.
- `progress`: `what`, `done` of `total`; at the start, at the end, and every 15 seconds.
- `skip`: `id` of a skipped item and the `reason`, once per run and item.
- `checkpoint`: work that survives a kill; `step` of training, or `images` of a store.
- `end`: `outcome` (`done`, `stopped` by a signal, `failed`), `seconds`, and `skipped` (a count) or
  the `error`. A killed run has no `end`.

Stages add their own events, listed in docs/outer-engines.md.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.pipeline.engine.artifact_names import EVENTS

logger = logging.getLogger(__name__)


@dataclass
class EventLog:
    """Writer of the `events.jsonl` of a directory; watch: called with it after each event."""

    directory: Path
    watch: Callable[[Path], None] | None = None
    _skipped: set[tuple[str, str]] = field(default_factory=set)

    def write(self, event: str, **fields: object) -> None:
        """Append an event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields})
        logger.debug("%s", line)
        with (self.directory / EVENTS).open("a+b") as file:
            if file.tell():
                # a kill may have truncated the last line
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())
        if self.watch is not None:
            self.watch(self.directory)

    def skip(self, image_id: str, reason: str) -> None:
        """Write the skip of an item, once per run."""
        if (image_id, reason) not in self._skipped:
            self._skipped.add((image_id, reason))
            self.write("skip", id=image_id, reason=reason)

    @contextmanager
    def running(self, **fields: object) -> Iterator[dict[str, object]]:
        """Write `start` before the block and `end` after it.

        The fields that the caller puts into the yielded dict become part of `end`.
        """
        self.write("start", **fields, pid=os.getpid(), host=socket.gethostname())
        started = time.monotonic()
        end: dict[str, object] = {}
        try:
            yield end
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            more: dict[str, object] = (
                {} if stopped else {"error": str(error) or type(error).__name__}
            )
            with suppress(OSError):  # on a full disk the first error is the one to report
                self._end("stopped" if stopped else "failed", started, more)
            raise
        self._end("done", started, end)

    def _end(self, outcome: str, started: float, more: dict[str, object]) -> None:
        seconds = round(time.monotonic() - started, 3)
        self.write("end", outcome=outcome, seconds=seconds, **more)
