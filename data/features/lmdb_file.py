"""A data file of a feature store in LMDB."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import lmdb

from a2cap.data.features.lmdb_check import find_damage
from a2cap.data.features.record import Record
from a2cap.data.features.seal import DATA_FILE, StoreSeal, damage_error

# LMDB refuses to open a file twice in one process, so all readers share one environment per file.
# Key: process, device and inode of the data file, because a rewritten store is another file.
_environments: WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = WeakValueDictionary()

# device, inode, size and modification time of data files without damage
_checked_files: set[tuple[int, int, int, int]] = set()


class LmdbFile:
    """The records in the data file of folder `path`, by key; iterates over the keys in order.

    The environment is opened at the first read and again after a fork, and is not pickled.
    """

    def __init__(self, path: Path, seal: StoreSeal) -> None:
        self.path = path
        self.seal = seal
        self._environment: lmdb.Environment | None = None
        self._process = os.getpid()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it is missing."""
        with self._transaction() as transaction:
            value = transaction.get(key)
            return None if value is None else bytes(value)  # valid after the transaction

    def __contains__(self, key: bytes) -> bool:
        with self._transaction() as transaction, transaction.cursor() as cursor:
            return cursor.set_key(key)

    def __iter__(self) -> Iterator[bytes]:
        # a list, because an iterator over the cursor would hold its transaction open
        with self._transaction() as transaction, transaction.cursor() as cursor:
            return iter([bytes(key) for key in cursor.iternext(values=False)])

    def records(self) -> Iterator[Record]:
        """Yield all records in key order, each valid until the next one."""
        with self._transaction() as transaction, transaction.cursor() as cursor:
            yield from cursor

    def __len__(self) -> int:
        with self._transaction() as transaction:
            return int(transaction.stat()["entries"])

    def close(self) -> None:
        """Close the file until the next read."""
        self._environment = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_environment": None}

    @contextmanager
    def _transaction(self) -> Iterator["lmdb.Transaction[memoryview]"]:
        """Open a read transaction; its memory is valid inside the `with` block."""
        # an environment does not survive a fork
        if self._environment is None or self._process != os.getpid():
            self._environment = _open_environment(self.path, self.seal)
            self._process = os.getpid()
        try:
            with self._environment.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise damage_error(self.path, error) from error


def _open_environment(path: Path, seal: StoreSeal) -> lmdb.Environment:
    """Return the environment of this process for a data file."""
    status = (path / DATA_FILE).stat()
    key = (os.getpid(), status.st_dev, status.st_ino)
    # an environment inherited through a fork counts as open in the child, but must not be used
    for (process, *_), inherited in list(_environments.items()):
        if process != os.getpid():
            inherited.close()
    environment = _environments.get(key)
    if environment is None:
        file = seal.data_file(path)
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        damage = None if version in _checked_files else find_damage(file)
        if damage is not None:
            raise damage_error(path, damage)
        _checked_files.add(version)
        try:
            # Without lock, because a sealed file has no writer and its folder may be read-only.
            # Without readahead, which would load features of other images at each random read.
            environment = lmdb.open(os.fspath(path), readonly=True, lock=False, readahead=False)
        except lmdb.Error as error:
            raise damage_error(path, error) from error
        _environments[key] = environment
    return environment
