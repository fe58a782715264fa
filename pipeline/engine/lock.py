"""One process per stage: a kernel lock, with the holder's name beside it.

The kernel frees the lock when its holder dies, however it dies, so a killed run never blocks the
next one; the file that names the holder is only read when the lock is taken.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from a2cap.data.errors import LockedError

_PATIENCE = 0.2
"""Seconds until a lock counts as taken: who only looks whether it is holds it for a moment."""


@contextmanager
def stage_lock(path: Path, *, what: str) -> Iterator[None]:
    """Holds the lock file `path` for the block; LockedError at once if another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except Timeout as error:
        raise LockedError(
            f"{what} is already running: {lock_holder(path)}; wait for it, or stop it"
        ) from error
    try:
        with suppress(OSError):  # on a full disk the lock holds all the same
            _holder_file(path).write_text(json.dumps(_this_process()))
        yield
    finally:
        _holder_file(path).unlink(missing_ok=True)
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock file `path`."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def lock_holder(path: Path) -> str:
    """The holder of a lock in words: process, host and start."""
    try:
        found = json.loads(_holder_file(path).read_text())
        return f"process {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"


def _this_process() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _holder_file(path: Path) -> Path:
    return path.with_suffix(".holder.json")
