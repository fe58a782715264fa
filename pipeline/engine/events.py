"""The diary of a stage for machines: `events.jsonl` in its directory, one JSON object per line.

Every event has `time` (seconds since the epoch) and `event`, which says what else it has:

- `start`: `stage`, `key`, `pid`, `host`, and `shard` where the run is of one.
- `progress`: `what` is being done, `done` of `total`; as that begins, as it ends, and every quarter
  of a minute between.
- `skip`: `id` of the item that was left out, and the `reason`; once per run and item.
- `checkpoint`: what no kill can take any more; `step` of training, or `images` of a store.
- `end`: `outcome` (`done`, `stopped` by a signal, `failed`), `seconds`, then `skipped` (how many)
  or, where it failed, the `error`. A run that was killed has none.

Stages add events of their own, which docs/events.md lists.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

logger = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"
_running: ContextVar["EventLog | None"] = ContextVar("_running", default=None)


class EventLog:
    """Appends events to the `events.jsonl` of a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._skipped: set[tuple[str, str]] = set()

    def write(self, event: str, **fields: object) -> None:
        """Appends an event, on a line of its own also after a line that a kill cut off."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields})
        logger.debug("%s", line)
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(f"{line}\n".encode())

    def skip(self, image_id: str, reason: str) -> None:
        """Says that an item is left out, once in a run."""
        if (image_id, reason) not in self._skipped:
            self._skipped.add((image_id, reason))
            self.write("skip", id=image_id, reason=reason)

    @contextmanager
    def running(self, **fields: object) -> Iterator[dict[str, object]]:
        """Brackets a run by `start` and `end`, which also has what the caller puts into the dict.

        In the block, `current_events` finds this log.
        """
        self.write("start", **fields, pid=os.getpid(), host=socket.gethostname())
        started = time.monotonic()
        of_end: dict[str, object] = {}
        token = _running.set(self)
        try:
            yield of_end
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            more: dict[str, object] = (
                {} if stopped else {"error": str(error) or type(error).__name__}
            )
            with suppress(OSError):  # on a full disk the first error says what to mend
                self._end("stopped" if stopped else "failed", started, more)
            raise
        finally:
            _running.reset(token)
        self._end("done", started, of_end)

    def _end(self, outcome: str, started: float, more: dict[str, object]) -> None:
        seconds = round(time.monotonic() - started, 3)
        self.write("end", outcome=outcome, seconds=seconds, **more)


def current_events() -> EventLog | None:
    """The log of the stage that this process is running; None where it runs none."""
    return _running.get()
