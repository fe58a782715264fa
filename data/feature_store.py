"""Reading a finished feature store: image id -> regions.

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

from a2.data.errors import StoreError
from a2.data.feature_record import FeatureType, check_record, decode_regions, record_key
from a2.data.feature_seal import DATA_FILE, StoreSeal, file_sha256, logical_digest, read_seal
from a2.data.regions import Regions

_NAMED_MISSING = 5

# (process, device, inode of the data file): a store that was made again is another file
_environments: WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = WeakValueDictionary()


class FeatureStore:
    """The regions of every picture of a sealed store, by image id; iteration is in key order.

    StoreError where there is no store at `path`, or its extraction is unfinished.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seal: StoreSeal = read_seal(path)
        self._environment: lmdb.Environment | None = None
        self._process = os.getpid()

    @property
    def feature_width(self) -> int:
        """F, the numbers per region."""
        return self.seal.feature_width

    @property
    def dtype(self) -> FeatureType:
        """Type in which features are stored, and read."""
        return self.seal.dtype

    @property
    def digest(self) -> str:
        """sha256 over the records: equal for stores of equal content."""
        return self.seal.digest

    def __getitem__(self, image_id: str) -> Regions:
        with self._reading() as transaction:
            value = transaction.get(record_key(image_id))
            record = None if value is None else bytes(value)
        if record is None:
            raise StoreError(
                f'no features for image {image_id!r} in {str(self.path)!r}; run "a2 extract" first'
            )
        return decode_regions(record, image_id)

    def __contains__(self, image_id: object) -> bool:
        try:
            key = record_key(str(image_id))
        except StoreError:
            return False
        with self._reading() as transaction, transaction.cursor() as cursor:
            return cursor.set_key(key)

    def __len__(self) -> int:
        return self.seal.count

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids())

    def require(self, image_ids: Iterable[str]) -> None:
        """StoreError, naming the first few, unless every picture has features."""
        stored = set(self._ids())
        missing = [image_id for image_id in image_ids if image_id not in stored]
        if missing:
            named = ", ".join(repr(image_id) for image_id in missing[:_NAMED_MISSING])
            more = ", …" if len(missing) > _NAMED_MISSING else ""
            raise StoreError(
                f"no features for {len(missing)} images in {str(self.path)!r}: {named}{more}; "
                'run "a2 extract" first'
            )

    def verify(self, data: bool = False) -> list[str]:
        """Problems found, none for a sound store; with `data`, every byte is read."""
        try:
            with self._reading() as transaction:
                found = transaction.stat()["entries"]
            if found != len(self):
                return [self._differs(f"holds {found} pictures, its seal says {len(self)}")]
            return self._damages() if data else []
        except StoreError as error:
            return [str(error)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_environment": None}

    def _ids(self) -> list[str]:
        # listed at once: an iterator over the cursor would hold its transaction open
        with self._reading() as transaction, transaction.cursor() as cursor:
            return [bytes(key).decode() for key in cursor.iternext(values=False)]

    def _damages(self) -> list[str]:
        damages = []
        if file_sha256(self.path / DATA_FILE) != self.seal.file_sha256:
            damages.append(self._differs("is not the file that was sealed"))
        with self._reading() as transaction, transaction.cursor() as cursor:
            if logical_digest(_checked(cursor, damages)) != self.digest:
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


def _checked(
    records: Iterable[tuple[memoryview, memoryview]], damages: list[str]
) -> Iterator[tuple[memoryview, memoryview]]:
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


def _damaged(path: Path, error: lmdb.Error) -> StoreError:
    return StoreError(f'{str(path)!r} is damaged: {error}; run "a2 extract --force"')
