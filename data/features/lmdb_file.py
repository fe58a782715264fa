"""A data file of a feature store in LMDB."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import RLock
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

import lmdb

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_check import find_damage
from a2cap.data.features.store_manifest import DATA_FILE, REMEDY, damage_error, read_store_manifest

Value = TypeVar("Value")
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"

# LMDB refuses to open a file twice in one process, so all readers share one environment per file.
# Key: process, device and inode of the data file, because a rewritten store is another file.
_environments: WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = WeakValueDictionary()
_opening = RLock()  # garbage may be collected, and then closed, while it is held

# device, inode, size and modification time of data files without damage
_checked_files: set[tuple[int, int, int, int]] = set()


class LmdbFile:
    """The records in the data file of a sealed folder, by key; iterates over the keys in order.

    digest: of the folder as a shard of a store, None if it is the store. The environment is opened
    at the first read and again after a fork. Threads may share it.
    """

    def __init__(self, path: Path, digest: str | None = None) -> None:
        self.path = path
        self._digest = digest
        self._environment: lmdb.Environment | None = None
        self._process = os.getpid()

    def get(self, key: bytes, start: int = 0) -> bytearray | None:
        """Return the value of a key from a byte on, or of the last ones; None if it is missing."""

        def copy(transaction: Transaction) -> bytearray | None:
            value = transaction.get(key)
            # valid after the transaction; arrays in it are writable
            return None if value is None else bytearray(value[start:])

        return self._read(copy)

    def __contains__(self, key: bytes) -> bool:
        return self._read(lambda transaction: transaction.cursor().set_key(key))

    def __iter__(self) -> Iterator[bytes]:
        # a list, because an iterator over the cursor would hold its transaction open
        keys = self._read(lambda txn: [bytes(key) for key in txn.cursor().iternext(values=False)])
        return iter(keys)

    def close(self) -> None:
        """Close the file until the next read."""
        with _opening:
            self._environment = None

    def __del__(self) -> None:
        # an environment that ends while another thread reads it would be found closed
        self.close()

    def _read(self, read: Callable[[Transaction], Value]) -> Value:
        """Call a function with a read transaction, whose memory is valid inside it."""
        with _opening:
            # an environment does not survive a fork
            if self._environment is None or self._process != os.getpid():
                self._environment = _open_environment(self.path, self._digest)
                self._process = os.getpid()
            environment = self._environment
        transaction: Transaction | None = None
        try:
            with environment.begin(buffers=True) as transaction:
                return read(transaction)
        except lmdb.Error as error:
            raise damage_error(self.path, error) from error
        finally:
            # if another thread closed the file, this ends the environment: not while one opens it
            with _opening:
                del environment, transaction


def _open_environment(path: Path, digest: str | None) -> lmdb.Environment:
    """Return the environment of this process for a data file.

    Raises StoreError unless the folder is the one that was sealed and its file has that size.
    """
    manifest, file = read_store_manifest(path), path / DATA_FILE
    if digest is not None and manifest.digest != digest:
        raise StoreError(
            f"{str(path)!r} is not the shard that was sealed with the others; "
            f"copy it again, or {REMEDY}"
        )
    status = file.stat()
    # reading beyond the end of a mapped file would kill the process
    if status.st_size != manifest.size:
        raise StoreError(
            f"{str(path)!r} has {status.st_size} bytes, its manifest {manifest.size}; "
            f"copy it again, or {REMEDY}"
        )
    key = (os.getpid(), status.st_dev, status.st_ino)
    # an environment inherited through a fork counts as open in the child, but must not be used
    for other, inherited in list(_environments.items()):
        if other[0] != os.getpid():
            inherited.close()
            del _environments[other]
    environment = _environments.get(key)
    if environment is None:
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
