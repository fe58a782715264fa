"""Cache of input file digests: an unchanged file is read only once.

A cached digest is valid while size, mtime_ns and inode stay the same. Stage keys contain only the
digests; a wrong mtime costs a read and never changes a key.
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
"""Digests per transaction; an open transaction blocks the writes of other commands."""

_FIND = "SELECT size, mtime_ns, inode, sha256 FROM files WHERE path = ?"
_INSERT = "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)"


class HashCache:
    """Cache of file digests in a SQLite file that several processes may share."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = _open(path)
        except sqlite3.Error as error:
            logger.warning("file digests are not cached: %r (%s)", str(path), error)
            self._database = _open(":memory:")

    def close(self) -> None:
        """Commit the new digests and close the database."""
        self._commit()
        self._database.close()

    def file(self, path: Path, *, what: str) -> str:
        """Return the hex sha256 of a file.

        what: the file's name in the InputError that is raised if `path` is not a file.
        """
        digest = self._digest(path, what=what)
        self._commit()
        return digest

    def _digest(self, path: Path, *, what: str) -> str:
        if not path.is_file():
            raise InputError(f"{what} not found: {str(path)!r}; check the path")
        status = path.stat()
        fresh = (status.st_size, status.st_mtime_ns, status.st_ino)
        name = str(path.resolve())  # one row per file, however the command names it
        # A cache that cannot be read or written, as on a full disk, costs only time.
        with suppress(sqlite3.Error):
            row = self._database.execute(_FIND, (name,)).fetchone()
            if row is not None and row[:3] == fresh:
                return str(row[3])
        digest = sha256_of(path)
        with suppress(sqlite3.Error):
            self._database.execute(_INSERT, (name, *fresh, digest))
        return digest

    def images(self, files: Mapping[str, Path | None]) -> str:
        """Return one digest over image ids and file contents; None is a missing file."""
        combined = hashlib.sha256()
        for number, (image_id, path) in enumerate(sorted(files.items()), start=1):
            # a file that appears later, also behind a broken link, must change the digest
            found = path if path is not None and path.is_file() else None
            content = "missing" if found is None else self._digest(found, what="image")
            combined.update(f"{image_id}\0{content}\n".encode())
            if number % _COMMITTED_TOGETHER == 0:
                self._commit()
        self._commit()
        return combined.hexdigest()

    def _commit(self) -> None:
        """Commit the new digests, or drop them if the database cannot be written."""
        try:
            self._database.commit()
        except sqlite3.Error as error:
            logger.debug("file digests are not cached: %s", error)
            with suppress(sqlite3.Error):
                self._database.rollback()


def _open(path: Path | str) -> sqlite3.Connection:
    """Open the database and create its table; raise sqlite3.Error if damaged or read-only."""
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
