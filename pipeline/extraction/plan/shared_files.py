"""File operations of the shard protocol, and a folder that machines share.

The protocol needs of a file system only that creating a file and renaming a folder succeed for one
process of all that try. What one machine writes may become visible to others late.
"""

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from filelock import FileLock

from a2cap.data.files.atomic import fsync, rename_durably
from a2cap.data.files.json_file import parse_json
from a2cap.pipeline.engine.key import canonical_json
from a2cap.pipeline.engine.lock import is_locked

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SharedFiles(Protocol):
    """Files that the workers of a plan share; paths are relative to the plan's folder."""

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if it exists."""

    def write(self, path: str, content: bytes) -> None:
        """Replace a file as a whole."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if there is none."""

    def rename(self, folder: str, target: str) -> bool:
        """Rename a folder; return False if there is none, or the target exists."""

    def sync(self, folder: str) -> None:
        """Wait until the content of all files of a folder is on disk."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""

    def discard(self, folder: str) -> None:
        """Remove a folder, or what a worker that writes into it leaves of it."""

    def now(self) -> float:
        """Return the seconds of a clock that other workers do not share."""

    def is_gone(self, worker: str) -> bool:
        """Return True if a worker has certainly ended: it ran on this machine."""


class SharedFolder:
    """A folder on a disk that all workers of a plan mount, and this process as one of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.worker = uuid4().hex
        for folder in ("leases", "workers"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        # Held until the process ends. A file system without locks makes takeovers slower.
        self._life = FileLock(self._lock(self.worker))
        with suppress(OSError, NotImplementedError):
            self._life.acquire()

    def create(self, path: str, content: bytes) -> bool:
        """Create a file; return False if it exists."""
        target = self.root / path
        temporary = self._temporary(target, content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            # NFS repeats a request whose reply was lost
            return temporary.stat().st_nlink == 2
        except OSError:  # a file system without hard links
            return _create_without_link(target, content)
        finally:
            temporary.unlink()
        fsync(target.parent)
        return True

    def write(self, path: str, content: bytes) -> None:
        """Replace a file as a whole."""
        target = self.root / path
        rename_durably(self._temporary(target, content), target)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def rename(self, folder: str, target: str) -> bool:
        """Rename a folder; return False if there is none, or the target exists."""
        if not (self.root / folder).is_dir():
            return False
        try:
            rename_durably(self.root / folder, self.root / target)
        except OSError:
            if (self.root / target).is_dir() or not (self.root / folder).is_dir():
                return False
            raise
        return True

    def sync(self, folder: str) -> None:
        """Wait until the content of all files of a folder is on disk."""
        for path in (*(self.root / folder).iterdir(), self.root / folder):
            fsync(path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return [path.name for path in (self.root / folder).iterdir()]

    def discard(self, folder: str) -> None:
        """Remove a folder, or what a worker that writes into it leaves of it."""
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def now(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def is_gone(self, worker: str) -> bool:
        """Return True if a worker of this machine does not hold its lock any more."""
        content = self.read(f"workers/{worker}.json")
        if content is None or not self.machine:
            return False
        described = parse_json(content.decode(), where=worker)
        is_here = isinstance(described, dict) and described.get("machine") == self.machine
        return is_here and not is_locked(self._lock(worker))

    def description(self) -> dict[str, object]:
        """Describe this process, for `is_gone` of others and for readers."""
        return {"host": socket.gethostname(), "pid": os.getpid(), "machine": self.machine}

    @property
    def machine(self) -> str:
        """Identity of the running kernel, "" if it has none or locks do not work."""
        # not the host's name, which containers on several machines may have in common
        return _BOOT.read_text().strip() if self._life.is_locked and _BOOT.exists() else ""

    def close(self) -> None:
        """End this worker, for others to see."""
        self._life.release()

    def _lock(self, worker: str) -> Path:
        return self.root / "workers" / f"{worker}.lock"

    def _temporary(self, target: Path, content: bytes) -> Path:
        temporary = target.with_name(f".{target.name}.{self.worker}")
        temporary.write_bytes(content)
        fsync(temporary)
        return temporary


def _create_without_link(target: Path, content: bytes) -> bool:
    try:
        with target.open("xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    fsync(target)
    fsync(target.parent)
    return True


def json_bytes(value: object) -> bytes:
    """Dump a value as one line of JSON."""
    return f"{canonical_json(value)}\n".encode()
