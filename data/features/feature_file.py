"""One sealed data file of a feature store, in any form: the whole store or one of its shards."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_file import LmdbFile
from a2cap.data.features.parquet_file import ParquetFile
from a2cap.data.features.record import Record, check_record
from a2cap.data.features.seal import REMEDY, Form, StoreSeal, logical_digest, read_seal
from a2cap.data.features.tar_file import TarFile
from a2cap.data.files.checksum import sha256_of


class FeatureFile(Protocol):
    """The records in the data file of folder `path`, by key; iterates over the keys in order.

    The file is opened at the first read and again after a fork; an open file is not pickled.
    """

    path: Path
    seal: StoreSeal

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it is missing."""

    def __contains__(self, key: bytes) -> bool: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def __len__(self) -> int: ...

    def records(self) -> Iterator[Record]:
        """Yield all records in key order, each valid until the next one."""

    def close(self) -> None:
        """Close the file until the next read."""


_FORMS: dict[Form, Callable[[Path, StoreSeal], FeatureFile]] = {
    "lmdb": LmdbFile,
    "tar": TarFile,
    "parquet": ParquetFile,
}


def open_file(path: Path) -> FeatureFile:
    """Return the data file of a sealed folder; raise StoreError if it has no valid seal."""
    seal = read_seal(path)
    return _FORMS[seal.form](path, seal)


def verify_file(file: FeatureFile, data: bool = False) -> list[str]:
    """Return the problems found; with `data`, read every byte."""

    def problem(what: str) -> str:
        return f"{str(file.path)!r} {what}; {REMEDY}"

    try:
        if len(file) != file.seal.count:
            return [problem(f"has {len(file)} images, its seal {file.seal.count}")]
        if not data:
            return []
        problems = []
        if sha256_of(file.seal.data_file(file.path)) != file.seal.file_sha256:
            problems.append(problem("is not the file that was sealed"))
        if logical_digest(_note_damage(file.records(), problems)) != file.seal.digest:
            problems.append(problem("contains other records than were sealed"))
        return problems
    except StoreError as error:
        return [str(error)]


def _note_damage(records: Iterable[Record], problems: list[str]) -> Iterator[Record]:
    """Yield the records; append those that do not match their checksum to `problems`."""
    for key, value in records:
        try:
            check_record(value, bytes(key).decode())
        except StoreError as error:
            problems.append(str(error))
        yield key, value
