"""The facts of a feature store, in the manifest of its sealed folder.

A store is a folder with `data.mdb`, or a list of such folders: its shards `00000`, `00001`, ...
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from a2cap.data.errors import A2Error, StoreError
from a2cap.data.features.feature_record import FeatureType
from a2cap.data.files.sealed_folder import MANIFEST, FileContent, Manifest, read_manifest

DATA_FILE = "data.mdb"
REMEDY = 'run "a2 extract --force"'
"""What restores a damaged store."""

_DIGEST_BITS = 256


class StoreFacts(FileContent):
    """Content of a finished feature store."""

    count: int = Field(ge=0)
    """Images in the store."""
    feature_width: int = Field(ge=0)
    """F, the features per region; 0 in a store without images."""
    dtype: FeatureType
    """Data type of the stored features."""
    digest: str
    """Sum of the sha256 of the records: equal for equal content, in shards or not."""
    shards: int = Field(default=0, ge=0)
    """Number of shards; 0 for a store in one data file."""


def shard_name(number: int) -> str:
    """Return the folder name of a shard in its store."""
    return f"{number:05}"


def records_digest(records: Iterable[tuple[bytes | memoryview, bytes | memoryview]]) -> str:
    """Return the sum of the sha256 of the records, modulo 2^256, as 64 hex digits.

    A sum, so that the digest of a store follows from those of its shards without reading them.
    """
    total = 0
    for key, value in records:
        digest = hashlib.sha256(len(key).to_bytes(8, "little"))
        digest.update(key)
        digest.update(value)
        total += int.from_bytes(digest.digest(), "big")
    return _as_digest(total)


def joint_digest(digests: Iterable[str]) -> str:
    """Return the digest of a store from those of its shards."""
    return _as_digest(sum(int(digest, 16) for digest in digests))


def _as_digest(total: int) -> str:
    return f"{total % (1 << _DIGEST_BITS):064x}"


def is_store(path: Path) -> bool:
    """Return True for the folder of a finished feature store."""
    try:
        facts_of(read_manifest(path), path)
    except A2Error:
        return False
    return True


def read_store_manifest(path: Path) -> Manifest:
    """Read the manifest of a store; raise StoreError if there is none, or it is unfinished."""
    if not (path / MANIFEST).exists():
        if not path.is_dir() or not any(path.iterdir()):
            raise StoreError(f'no feature store at {str(path)!r}; run "a2 extract" first')
        raise StoreError(
            f'extraction into {str(path)!r} is unfinished; run "a2 extract" again to resume it'
        )
    try:
        return read_manifest(path)
    except A2Error as error:
        reason = str(error).partition(";")[0]
        raise StoreError(f"{reason}; copy the store again, or {REMEDY}") from error


def facts_of(manifest: Manifest, path: Path) -> StoreFacts:
    """Return the facts of a store; raise StoreError for the manifest of something else."""
    try:
        return StoreFacts.model_validate(manifest.facts)
    except ValidationError as error:
        raise StoreError(f"{str(path)!r} is not a feature store; {REMEDY}") from error


def damage_error(store: Path, problem: Exception | str) -> StoreError:
    """Return the error of a data file that cannot be read as what it is."""
    return StoreError(f"{str(store)!r} is damaged: {problem}; {REMEDY}")
