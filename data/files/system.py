"""What differs between Linux, macOS and Windows: locks and durability.

Windows has no module fcntl and opens no folder. What a system lacks
is left out: on Windows, `a2 clean` cannot see that another process reads a folder.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from a2cap.data.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""False where `locked` holds nothing."""

# without O_NONBLOCK, opening a FIFO waits for its writer
_FLAGS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
_READ_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in _FLAGS)
"""Flags of `os.open` for reading a path that may not be a regular file."""


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading; raise InputError if it is a folder, a FIFO or a device."""
    descriptor = os.open(path, _READ_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"not a regular file: {str(path)!r}; name a file")
    return os.fdopen(descriptor, "rb")


def fsync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on disk."""
    if fcntl is None and path.is_dir():  # its names are in NTFS's journal
        return
    descriptor = os.open(path, os.O_RDONLY if fcntl else os.O_RDWR)
    try:
        os.fsync(descriptor)
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync leaves data in the disk's cache
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, exclusive: bool, wait: bool = False) -> Iterator[None]:
    """Hold the kernel's lock of a file or folder inside the block, where the system has locks.

    The kernel releases it when the process dies. Raises BlockingIOError if another process holds
    it and `wait` is False, OSError for a file system without locks.
    """
    if fcntl is None:
        path.stat()  # raises the same error where it does not exist
        yield
        return
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            # the holder of before may have removed or replaced the path: its lock is nobody's
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                yield
                return
        finally:
            os.close(descriptor)


def cores() -> int:
    """Return the cores that this process may use: in a container, fewer than the machine has."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def user_of() -> int:
    """Return the id of this process's user, 0 on Windows, as files there state."""
    return os.getuid() if hasattr(os, "getuid") else 0
