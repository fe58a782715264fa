"""Stage locks: a kernel file lock, with a description of its holder in a file beside it.

The kernel releases the lock when its holder dies, so a killed run never blocks the next one. The
description is read only while the lock is held.

Locks of an artifacts folder are in its folder LOCKS.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from a2cap.data.errors import LockedError
from a2cap.data.files.system import HAS_LOCKS, locked

LOCKS = ".locks"
HOLDER = ".holder.json"

# Not 0: `is_locked` of another process holds the lock for a moment.
_TIMEOUT = 0.2
"""Seconds until a lock counts as taken."""


@contextmanager
def stage_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file inside the block; raise LockedError if another process holds it."""
    try:
        lock = FileLock(path).acquire(timeout=_TIMEOUT, poll_interval=_TIMEOUT / 10)
    except Timeout as error:
        raise LockedError(
            f"{what} is already running: {lock_holder(path)}; wait for it, or stop it"
        ) from error
    with lock:
        with suppress(OSError):  # the lock works on a full disk too
            since = datetime.now().astimezone().isoformat(timespec="seconds")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            path.with_suffix(HOLDER).write_text(json.dumps(holder))
        try:
            yield
        finally:
            # before the release: afterwards the file may be that of the next holder
            path.with_suffix(HOLDER).unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Return True if a living process holds the lock."""
    try:
        # not by FileLock, which needs the right to write
        with locked(path, exclusive=False):
            if HAS_LOCKS:
                return False
        with FileLock(path).acquire(timeout=0):
            return False
    except FileNotFoundError:
        return False
    except (BlockingIOError, Timeout):
        return True


def lock_holder(path: Path) -> str:
    """Describe the holder of a lock: process, host and start."""
    try:
        holder = json.loads(path.with_suffix(HOLDER).read_text())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"


@contextmanager
def read_lock(*paths: Path) -> Iterator[None]:
    """Keep the results at or around these paths from being deleted inside the block."""
    with ExitStack() as opened:
        for path in paths:
            # a lock of the folder itself: nothing is written, and a killed reader leaves nothing
            with suppress(OSError):  # a path that does not exist is the caller's to report
                folder = path if path.is_dir() else path.parent
                opened.enter_context(locked(folder, exclusive=False, wait=True))
        yield


def require_unread(folder: Path) -> None:
    """Raise LockedError if a living process reads the folder or one in it."""
    if is_read(folder):
        raise LockedError(f"{str(folder)!r} is read by another process; wait for it, or stop it")


def is_read(folder: Path) -> bool:
    """Return True if a living process reads the folder or one in it."""
    for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        try:
            with locked(inner, exclusive=True):
                continue
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks of folders
            return False
    return False
