"""Digests of input files, remembered so that an unchanged file is read only once.

The cache is keyed by (size, mtime_ns, inode): mtime is a shortcut to skip a read, never the truth
that a key is made of.
"""

import hashlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from a2.data.errors import InputError


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashCache:
    """sha256 of files, kept in a small SQLite file that several processes may share."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=60.0)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, "
            "size INTEGER, mtime_ns INTEGER, inode INTEGER, sha256 TEXT)"
        )

    def close(self) -> None:
        """Writes what was learnt and closes the cache."""
        self._database.commit()
        self._database.close()

    def file(self, path: Path, *, what: str) -> str:
        """Hex sha256 of `path`; InputError where `what` (its name in the error) is no file."""
        if not path.is_file():
            raise InputError(f"{what} not found: {str(path)!r}; check the path")
        status = path.stat()
        fresh = (status.st_size, status.st_mtime_ns, status.st_ino)
        row = self._database.execute(
            "SELECT size, mtime_ns, inode, sha256 FROM files WHERE path = ?", (str(path.resolve()),)
        ).fetchone()
        if row is not None and row[:3] == fresh:
            return str(row[3])
        digest = sha256_of(path)
        self._database.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            (str(path.resolve()), *fresh, digest),
        )
        return digest

    def pictures(self, files: Mapping[str, Path | None]) -> str:
        """One digest over image ids and the content of their files; None is a missing file."""
        combined = hashlib.sha256()
        for image_id, path in sorted(files.items()):
            content = "missing" if path is None else self.file(path, what="picture")
            combined.update(f"{image_id}\0{content}\n".encode())
        self._database.commit()
        return combined.hexdigest()
