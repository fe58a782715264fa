"""Digests of input files, remembered so that an unchanged file is read only once.

The cache is keyed by (size, mtime_ns, inode): mtime is a shortcut to skip a read, never the truth
that a key is made of.
"""

import hashlib
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.files.checksum import sha256_of

logger = logging.getLogger(__name__)

_COMMITTED_TOGETHER = 256
"""Digests per transaction: an open one keeps other commands from remembering theirs."""

_FIND = "SELECT size, mtime_ns, inode, sha256 FROM files WHERE path = ?"
_REMEMBER = "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)"


class HashCache:
    """sha256 of files, kept in a small SQLite file that several processes may share."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = _open(path)
        except sqlite3.Error as error:
            logger.warning("digests of files are not remembered: %r (%s)", str(path), error)
            self._database = _open(":memory:")

    def close(self) -> None:
        """Writes what was learnt and closes the cache."""
        self._commit()
        self._database.close()

    def file(self, path: Path, *, what: str) -> str:
        """Hex sha256 of `path`; InputError where `what` (its name in the error) is no file."""
        digest = self._digest(path, what=what)
        self._commit()
        return digest

    def _digest(self, path: Path, *, what: str) -> str:
        if not path.is_file():
            raise InputError(f"{what} not found: {str(path)!r}; check the path")
        status = path.stat()
        fresh = (status.st_size, status.st_mtime_ns, status.st_ino)
        name = str(path.resolve())
        # A cache that cannot be read or written, as on a full disk, only costs time.
        with suppress(sqlite3.Error):
            row = self._database.execute(_FIND, (name,)).fetchone()
            if row is not None and row[:3] == fresh:
                return str(row[3])
        digest = sha256_of(path)
        with suppress(sqlite3.Error):
            self._database.execute(_REMEMBER, (name, *fresh, digest))
        return digest

    def images(self, files: Mapping[str, Path | None]) -> str:
        """One digest over image ids and the content of their files; None is a missing file."""
        combined = hashlib.sha256()
        for number, (image_id, path) in enumerate(sorted(files.items()), start=1):
            content = "missing" if path is None else self._digest(path, what="image")
            combined.update(f"{image_id}\0{content}\n".encode())
            if number % _COMMITTED_TOGETHER == 0:
                self._commit()
        self._commit()
        return combined.hexdigest()

    def _commit(self) -> None:
        """Writes what was learnt, or forgets it where that cannot be written."""
        try:
            self._database.commit()
        except sqlite3.Error as error:
            logger.debug("digests of files are not remembered: %s", error)
            with suppress(sqlite3.Error):
                self._database.rollback()


def _open(path: Path | str) -> sqlite3.Connection:
    """The cache's database, with its table; sqlite3.Error where it is damaged or read-only."""
    database = sqlite3.connect(path, timeout=60.0)
    try:
        database.execute(
            "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, "
            "size INTEGER, mtime_ns INTEGER, inode INTEGER, sha256 TEXT)"
        )
    except sqlite3.Error:
        database.close()
        raise
    return database
