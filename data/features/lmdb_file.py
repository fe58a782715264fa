"""One sealed data file of a feature store, the whole store or one of its shards.

LMDB refuses to open a file twice in one process, and its environments survive neither pickling
nor a fork. So the stores of one process share one environment per file, which is opened at the
first read, left out of pickles, and opened anew in a forked worker.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import lmdb

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_check import tree_problem
from a2cap.data.features.record import check_record
from a2cap.data.features.seal import DATA_FILE, StoreSeal, logical_digest
from a2cap.data.files.checksum import sha256_of

Record = tuple[memoryview, memoryview]
"""Key and value, in LMDB's own memory."""

# (process, device, inode of the data file): a store that was made again is another file
_environments: WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = WeakValueDictionary()

# (device, inode, size, time of change) of data files whose tree was checked
_sound: set[tuple[int, int, int, int]] = set()


class FeatureFile:
    """The records in the data file of folder `path`, by key; iteration is over keys, in order."""

    def __init__(self, path: Path, seal: StoreSeal) -> None:
        self.path = path
        self.seal = seal
        self._environment: lmdb.Environment | None = None
        self._process = os.getpid()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None where there is none."""
        with self._reading() as transaction:
            value = transaction.get(key)
            return None if value is None else bytes(value)

    def __contains__(self, key: bytes) -> bool:
        with self._reading() as transaction, transaction.cursor() as cursor:
            return cursor.set_key(key)

    def __iter__(self) -> Iterator[bytes]:
        # listed at once: an iterator over the cursor would hold its transaction open
        with self._reading() as transaction, transaction.cursor() as cursor:
            return iter([bytes(key) for key in cursor.iternext(values=False)])

    def records(self) -> Iterator[Record]:
        """All records in key order, each valid until the next is taken."""
        with self._reading() as transaction, transaction.cursor() as cursor:
            yield from cursor

    def verify(self, data: bool = False) -> list[str]:
        """Problems found, none for a sound file; with `data`, every byte is read."""
        try:
            with self._reading() as transaction:
                found = transaction.stat()["entries"]
            if found != self.seal.count:
                return [self._differs(f"holds {found} images, its seal says {self.seal.count}")]
            return self._damages() if data else []
        except StoreError as error:
            return [str(error)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_environment": None}

    def _damages(self) -> list[str]:
        damages = []
        if sha256_of(self.path / DATA_FILE) != self.seal.file_sha256:
            damages.append(self._differs("is not the file that was sealed"))
        if logical_digest(_checked(self.records(), damages)) != self.seal.digest:
            damages.append(self._differs("holds other records than were sealed"))
        return damages

    def _differs(self, how: str) -> str:
        return f'{str(self.path)!r} {how}; run "a2 extract --force"'

    @contextmanager
    def _reading(self) -> Iterator["lmdb.Transaction[memoryview]"]:
        """A read transaction of this process, whose memory is gone when it is left."""
        if self._environment is None or self._process != os.getpid():
            self._environment = _environment(self.path, self.seal)
            self._process = os.getpid()
        try:
            with self._environment.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise _damaged(self.path, error) from error


def _checked(records: Iterable[Record], damages: list[str]) -> Iterator[Record]:
    """The records, unchanged; `damages` grows by those that do not match their checksum."""
    for key, value in records:
        try:
            check_record(value, bytes(key).decode())
        except StoreError as error:
            damages.append(str(error))
        yield key, value


def _environment(path: Path, seal: StoreSeal) -> lmdb.Environment:
    """The one environment of this process over a store."""
    status = (path / DATA_FILE).stat()
    key = (os.getpid(), status.st_dev, status.st_ino)
    _close_inherited()
    environment = _environments.get(key)
    if environment is None:
        if status.st_size != seal.bytes:
            raise StoreError(
                f"{str(path)!r} has {status.st_size} bytes, its seal says {seal.bytes}; "
                'copy it again, or run "a2 extract --force"'
            )
        _check_tree(path / DATA_FILE)
        try:
            environment = lmdb.open(os.fspath(path), readonly=True, lock=False, readahead=False)
        except lmdb.Error as error:
            raise _damaged(path, error) from error
        _environments[key] = environment
    return environment


def _close_inherited() -> None:
    # an environment inherited through a fork counts as open in the child, but must not be used
    for (process, *_), environment in list(_environments.items()):
        if process != os.getpid():
            environment.close()


def _check_tree(file: Path) -> None:
    """StoreError where LMDB would be led out of the file; a file is looked at once."""
    status = file.stat()
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if version in _sound:
        return
    problem = tree_problem(file)
    if problem is not None:
        raise _damaged(file.parent, problem)
    _sound.add(version)


def _damaged(path: Path, problem: lmdb.Error | str) -> StoreError:
    return StoreError(f'{str(path)!r} is damaged: {problem}; run "a2 extract --force"')
