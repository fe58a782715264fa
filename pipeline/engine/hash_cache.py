"""Cache of input file digests, and of the images that files name: unchanged files are read once.

A cached digest is valid while size, times and inode stay the same. Stage keys contain only the
digests; a wrong time costs a read and never changes a key.
"""

import errno
import hashlib
import json
import logging
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from a2cap.data.errors import InputError
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.paths import did_you_mean
from a2cap.pipeline.engine.inputs import FileState, Input, file_state

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COMMITTED_TOGETHER = 256
"""Digests per transaction; an open transaction blocks the writes of other commands."""

_FIND = "SELECT size, mtime_ns, ctime_ns, inode, sha256 FROM digests WHERE path = ?"
_INSERT = "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)"
_FIND_NAMES = "SELECT names FROM named WHERE path = ? AND key = ?"
_INSERT_NAMES = "INSERT OR REPLACE INTO named VALUES (?, ?, ?)"


class HashCache:
    """Cache of file digests in a SQLite file that several processes may share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _database(self) -> sqlite3.Connection:
        """Database, with its folder, from the first digest on."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            # `a2 status` and others need no right to write
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
        try:
            database = _open(self._path)
        except sqlite3.Error as error:
            logger.warning("file digests are not cached: %r (%s)", str(self._path), error)
            database = _open(":memory:")
        # Python 3.13 warns of a database that nobody closes
        self._closing = weakref.finalize(self, database.close)
        return database

    def close(self) -> None:
        """Close the database, as the end of the cache does."""
        if "_database" in self.__dict__:
            self._closing()

    def file(self, path: Path, *, what: str) -> Input:
        """Return a file with its hex sha256.

        what: the file's name in the InputError that is raised if `path` is not a file.
        """
        if not path.is_file():
            raise InputError(f"{what} not found: {str(path)!r}; check the path{did_you_mean(path)}")
        promised = self._digest(path)
        self._commit()
        return Input(path, promised[0], {path: promised})

    def _digest(self, path: Path) -> tuple[str, FileState]:
        """Return the digest and state of a file; raise OSError if it cannot be read."""
        fresh = file_state(path)
        name = str(path.absolute())  # resolving links takes longer than finding the row
        # A cache that cannot be read or written, as on a full disk, costs only time.
        with suppress(sqlite3.Error):
            row = self._database.execute(_FIND, (name,)).fetchone()
            if row is not None and row[:-1] == fresh:
                return str(row[-1]), fresh
        digest = sha256_of(path)
        with suppress(sqlite3.Error):
            self._database.execute(_INSERT, (name, *fresh, digest))
        return digest, fresh

    def images(self, folder: Path, files: Mapping[str, Path | None]) -> Input:
        """Return images with one digest over ids and contents, and the files that can be read."""
        combined, promised = hashlib.sha256(), {}
        for number, (image_id, path) in enumerate(sorted(files.items()), start=1):
            content = "missing"
            # a file that can be read later, also behind a broken link, must change the digest
            with suppress(OSError):
                if path is not None and path.is_file():
                    promised[path] = self._digest(path)
                    content = promised[path][0]
            combined.update(f"{image_id}\0{content}\n".encode())
            if number % _COMMITTED_TOGETHER == 0:
                self._commit()
        self._commit()
        return Input(folder, combined.hexdigest(), promised)

    def names(
        self, files: Sequence[Path], rules: str, read: Callable[[], dict[str, T]]
    ) -> dict[str, T]:
        """Return what `read` finds in the files by these rules, without calling it if it is known.

        Its values have to survive JSON, but for tuples. One result per first file is kept.
        """
        row = [str(files[0].absolute()), self._key(files, rules)]
        # damaged rows cost only time too
        with suppress(sqlite3.Error, ValueError, TypeError):
            [stored] = self._database.execute(_FIND_NAMES, row).fetchone() or [None]
            if stored is not None:
                return dict(json.loads(stored))
        names = read()
        if self._key(files, rules) == row[1]:  # no file was replaced while it was read
            with suppress(sqlite3.Error):
                self._database.execute(_INSERT_NAMES, (*row, json.dumps(names)))
        self._commit()
        return names

    def _key(self, files: Sequence[Path], rules: str) -> str:
        return "\n".join([rules, *(self._digest(path)[0] for path in files)])

    def _commit(self) -> None:
        """Commit the new digests, or drop them if the database cannot be written."""
        try:
            self._database.commit()
        except sqlite3.Error as error:
            logger.debug("file digests are not cached: %s", error)
            with suppress(sqlite3.Error):
                self._database.rollback()


def _open(path: Path | str) -> sqlite3.Connection:
    """Open the database and create its tables; raise sqlite3.Error if damaged or read-only."""
    # whichever thread collects a forgotten cache closes it
    database = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
    try:
        database.execute(
            "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, size INTEGER, "
            "mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, sha256 TEXT)"
        )
        database.execute(
            "CREATE TABLE IF NOT EXISTS named (path TEXT PRIMARY KEY, key TEXT, names TEXT)"
        )
    except sqlite3.Error:
        database.close()
        raise
    return database
