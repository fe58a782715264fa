"""Writing a feature store: one LMDB of records, durable at every commit, sealed when finished.

LMDB runs with its default flags. Its writemap mode would turn a full disk into a SIGBUS, and
sync=False would give up the promise that a committed image survives kill -9 and power cuts.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import lmdb

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_check import tree_problem
from a2cap.data.features.record import (
    FeatureType,
    check_record,
    decode_regions,
    encode_regions,
    record_key,
)
from a2cap.data.features.seal import (
    DATA_FILE,
    SEAL_FILE,
    StoreSeal,
    logical_digest,
    write_seal,
)
from a2cap.data.files.checksum import sha256_of
from a2cap.data.regions import Regions

logger = logging.getLogger(__name__)

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on file sizes is reached",
    errno.EIO: "the disk is full or fails",  # LMDB reports a short write so
}


class FeatureWriter:
    """Adds images to an unsealed feature store, new or left by an interrupted run.

    Records wait in memory and are committed together after `commit_every` images, at the first
    image that is `commit_seconds` after the last commit, and on leaving the `with` block,
    also by an exception; `on_commit` is then told how many are kept. `map_size`, in bytes, doubles
    when it is used up.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: FeatureType = "float16",
        map_size: int = 1 << 30,
        commit_every: int = 64,
        commit_seconds: float = 30.0,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        self._path = path
        self._dtype: FeatureType = dtype
        self._commit_every = commit_every
        self._commit_seconds = commit_seconds
        self._on_commit = on_commit
        self._pending: dict[bytes, bytes] = {}
        self._environment: lmdb.Environment | None = _open(path, map_size)
        self._ids = self._stored_ids()
        self._width = self._stored_width()
        self._committed_at = time.monotonic()

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.flush()
        except StoreError as unsaved:
            if error is None:
                raise
            logger.warning("%s", unsaved)  # the first error says what to mend
        finally:
            self.close()

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def done(self) -> set[str]:
        """Ids of all images added, in this run or an earlier one, committed or not."""
        return set(self._ids)

    def add(self, image_id: str, regions: Regions) -> None:
        """Add one image; StoreError for a second one of that id, or what a store cannot hold."""
        self._open_environment()
        if image_id in self._ids:
            raise StoreError(
                f"image {image_id!r} is already in {str(self._path)!r}; "
                "give every image an id of its own"
            )
        key, value = record_key(image_id), encode_regions(regions, self._dtype, image_id)
        self._check_width(regions.features.shape[1], image_id)
        self._pending[key] = value
        self._ids.add(image_id)
        if self._commit_is_due():
            self.flush()

    def flush(self) -> None:
        """Commit what was added; StoreError, which says what is kept, where the disk refuses it."""
        while self._pending:
            try:
                self._commit()
            except lmdb.MapFullError:
                self._double_map()

    def seal(self, extra: Mapping[str, str] | None = None) -> StoreSeal:
        """Finish the store: nothing can be added any more, and readers open it.

        StoreError where a record on the disk does not match its checksum.
        """
        self.flush()
        digest = logical_digest(self._checked_records())
        self.close()
        data = self._path / DATA_FILE
        seal = StoreSeal(
            count=len(self._ids),
            feature_width=self._width,
            dtype=self._dtype,
            bytes=data.stat().st_size,
            digest=digest,
            file_sha256=sha256_of(data),
            extra=dict(extra or {}),
        )
        try:
            write_seal(self._path, seal)
        except OSError as error:
            raise self._not_written(error) from error
        return seal

    def close(self) -> None:
        """Release the store, without committing; one that is not sealed can be resumed."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _open_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise StoreError(f"{str(self._path)!r} is closed; open it again to write")
        return self._environment

    def _commit_is_due(self) -> bool:
        waited = time.monotonic() - self._committed_at
        return len(self._pending) >= self._commit_every or waited >= self._commit_seconds

    def _commit(self) -> None:
        try:
            with self._open_environment().begin(write=True) as transaction:
                for key, value in self._pending.items():
                    transaction.put(key, value, overwrite=False)
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            raise self._not_written(error) from error
        self._pending.clear()
        self._committed_at = time.monotonic()
        if self._on_commit is not None:
            self._on_commit(len(self._ids))

    def _double_map(self) -> None:
        environment = self._open_environment()
        try:
            environment.set_mapsize(2 * environment.info()["map_size"])
        except lmdb.Error as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError | lmdb.Error) -> StoreError:
        kept = len(self._ids) - len(self._pending)
        code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        reason = _REASONS.get(code or 0, str(error))
        return StoreError(
            f"cannot write {str(self._path)!r}: {reason}; {kept} images are kept, "
            "make room and run again to resume"
        )

    def _check_width(self, width: int, image_id: str) -> None:
        if self._width == 0:
            self._width = width
        if width != self._width:
            raise StoreError(
                f"region width of image {image_id!r} is {width}, "
                f"of {str(self._path)!r} {self._width}; extract all images with one extractor"
            )

    def _stored_ids(self) -> set[str]:
        with self._open_environment().begin() as transaction, transaction.cursor() as cursor:
            return {key.decode() for key in cursor.iternext(values=False)}

    def _stored_width(self) -> int:
        """F of the records of an earlier run, 0 where there are none; StoreError for a dtype."""
        with self._open_environment().begin() as transaction, transaction.cursor() as cursor:
            if not cursor.first():
                return 0
            regions = decode_regions(cursor.value(), cursor.key().decode())
        stored = str(regions.features.dtype)
        if stored != self._dtype:
            self.close()
            raise StoreError(
                f"features of {str(self._path)!r} are {stored}, asked for {self._dtype}; "
                f'go on with {stored}, or run "a2 extract --force"'
            )
        return int(regions.features.shape[1])

    def _checked_records(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Records in key order, valid until the next is taken."""
        environment = self._open_environment()
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            for key, value in cursor:
                check_record(value, bytes(key).decode())
                yield key, value


def _open(path: Path, map_size: int) -> lmdb.Environment:
    if (path / SEAL_FILE).exists():
        raise StoreError(
            f"{str(path)!r} is sealed, nothing can be added; "
            'read it, or run "a2 extract --force" to make it again'
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        environment = lmdb.open(os.fspath(path), map_size=map_size)
    except (OSError, lmdb.Error) as error:
        raise StoreError(
            f"cannot open {str(path)!r} for writing: {error}; choose another place or mend this one"
        ) from error
    try:
        _check_readable(path, environment)
    except StoreError:
        environment.close()
        raise
    return environment


def _check_readable(path: Path, environment: lmdb.Environment) -> None:
    # reading a mapped page behind the end of its file would kill the process by SIGBUS
    used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = (path / DATA_FILE).stat().st_size
    again = 'run "a2 extract --force" to make it again'
    if size < used:
        raise StoreError(f"{str(path)!r} is truncated: {size} bytes of {used}; {again}")
    problem = tree_problem(path / DATA_FILE)
    if problem is not None:
        raise StoreError(f"{str(path)!r} is damaged: {problem}; {again}")
