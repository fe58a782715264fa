"""The writer of a feature store, which is durable at every commit and sealed when finished."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

from a2cap.data.errors import StoreError
from a2cap.data.features.feature_record import (
    FeatureType,
    RecordBytes,
    checked_records,
    decode_regions,
    encode_regions,
    record_key,
)
from a2cap.data.features.lmdb_check import find_damage
from a2cap.data.features.store_manifest import DATA_FILE, StoreFacts, records_digest
from a2cap.data.files.sealed_folder import MANIFEST, SkippedItem, seal
from a2cap.data.regions import Regions

logger = logging.getLogger(__name__)

_LOCK_FILE = "lock.mdb"
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on file sizes is reached",
    errno.EIO: "the disk is full or fails",  # LMDB's code for a short write
}


class StoreWriteError(StoreError):
    """Raised when a commit or a seal cannot be written, as on a full disk."""


class FeatureWriter:
    """The writer of an unsealed feature store, new or of an interrupted run.

    Commits after `commit_every` images, at the first image `commit_seconds` after the last commit,
    and at the end of the `with` block, also by an exception. Then it calls `on_commit` with the
    number of stored images. `map_size`, in bytes, doubles when it is full.
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
        self.path = path
        self._dtype: FeatureType = dtype
        self._commit_every = commit_every
        self._commit_seconds = commit_seconds
        self._on_commit = on_commit
        self._pending: dict[bytes, bytes] = {}
        self._environment: lmdb.Environment | None = _open(path, map_size)
        self._ids = {bytes(key).decode() for key, _ in self.records()}
        self._width = self._read_width()
        self._committed_at = time.monotonic()

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.flush()
        except StoreError as unsaved:
            if error is None:
                raise
            logger.warning("%s", unsaved)  # the first error is the cause
        finally:
            self.close()

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def done(self) -> set[str]:
        """Return the ids of all images added, in this run or an earlier one, committed or not."""
        return set(self._ids)

    def add(self, image_id: str, regions: Regions) -> None:
        """Add one image; raise StoreError for a duplicate id or invalid regions."""
        self._require_open()
        if image_id in self._ids:
            raise StoreError(
                f"image {image_id!r} is already in {str(self.path)!r}; "
                "give every image a different id"
            )
        # encoded now, so that the caller can reuse its arrays
        key, value = record_key(image_id), encode_regions(regions, self._dtype, image_id)
        self._check_width(regions.features.shape[1], image_id)
        self._pending[key] = value
        self._ids.add(image_id)
        waited = time.monotonic() - self._committed_at
        if len(self._pending) >= self._commit_every or waited >= self._commit_seconds:
            self.flush()

    def flush(self) -> None:
        """Commit all added images; raise StoreError, with the number kept, if that fails."""
        while self._pending:
            try:
                self._commit()
            except lmdb.MapFullError:  # the transaction was rolled back, all images are pending
                self._double_map()

    def seal(self, skipped: Sequence[SkippedItem] = ()) -> StoreFacts:
        """Seal the store, which makes it readable and final.

        skipped: images without features. Raises StoreError if a record on the disk does not match
        its checksum.
        """
        self.flush()
        facts = StoreFacts(
            count=len(self._ids),
            feature_width=self._width,
            dtype=self._dtype,
            # from the disk and not from memory, so that it covers the stored bytes
            digest=records_digest(checked_records(self.records())),
        )
        self.close()
        with self._write_errors():
            (self.path / _LOCK_FILE).unlink(missing_ok=True)
            seal(self.path, [DATA_FILE], facts=facts.model_dump(mode="json"), skipped=skipped)
        return facts

    def close(self) -> None:
        """Close the store without committing; it can be resumed unless it is sealed."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _require_open(self) -> lmdb.Environment:
        if self._environment is None:
            raise StoreError(f"{str(self.path)!r} is closed; open it again to write")
        return self._environment

    def _commit(self) -> None:
        with self._write_errors(), self._require_open().begin(write=True) as transaction:
            for key, value in self._pending.items():
                transaction.put(key, value, overwrite=False)
        self._pending.clear()
        self._committed_at = time.monotonic()
        if self._on_commit is not None:
            self._on_commit(len(self._ids))

    def _double_map(self) -> None:
        environment = self._require_open()
        with self._write_errors():
            environment.set_mapsize(2 * environment.info()["map_size"])

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Turn a failed write into a StoreWriteError with the number of images kept."""
        try:
            yield
        except lmdb.MapFullError:
            raise
        except (OSError, lmdb.Error) as error:
            kept = len(self._ids) - len(self._pending)
            code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
            raise StoreWriteError(
                f"cannot write {str(self.path)!r}: {_REASONS.get(code or 0, str(error))}; "
                f"{kept} images are kept, free disk space and run again to resume"
            ) from error

    def _check_width(self, width: int, image_id: str) -> None:
        if self._width == 0:
            self._width = width
        if width != self._width:
            raise StoreError(
                f"region width of image {image_id!r} is {width}, "
                f"of {str(self.path)!r} {self._width}; extract all images with one extractor"
            )

    def _read_width(self) -> int:
        """Return F of the records of an earlier run, 0 if there are none; check their dtype."""
        for key, value in self.records():
            regions = decode_regions(bytes(value), bytes(key).decode())
            break  # all records have the same
        else:
            return 0
        stored = str(regions.features.dtype)
        if stored != self._dtype:
            self.close()
            raise StoreError(
                f"features of {str(self.path)!r} are {stored}, not {self._dtype}; "
                f'continue with {stored}, or run "a2 extract --force"'
            )
        return int(regions.features.shape[1])

    def records(self) -> Iterator[RecordBytes]:
        """Yield the committed records in key order, each valid until the next one."""
        environment = self._require_open()
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            yield from cursor


def _open(path: Path, map_size: int) -> lmdb.Environment:
    if (path / MANIFEST).exists():
        raise StoreError(
            f"{str(path)!r} is sealed and cannot be changed; "
            'read it, or run "a2 extract --force" to replace it'
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Default flags: writemap would turn a full disk into a SIGBUS, and sync=False could lose
        # committed images in a power cut.
        environment = lmdb.open(os.fspath(path), map_size=map_size)
    except (OSError, lmdb.Error) as error:
        raise StoreError(
            f"cannot open {str(path)!r} for writing: {error}; choose another path or fix this one"
        ) from error
    # after the open, which initialises an empty file, and before any page is read
    damage = find_damage(path / DATA_FILE)
    if damage is not None:
        environment.close()
        raise StoreError(
            f'{str(path)!r} is damaged: {damage}; run "a2 extract --force" to replace it'
        )
    return environment
