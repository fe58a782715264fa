"""The seal of a feature store: what a finished store holds, written beside its data.

A store without a seal is an extraction that has not finished. The file of LMDB differs between
runs that stored the same images, so stores are compared by the digest over their records.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2cap.data.errors import StoreError
from a2cap.data.features.record import FeatureType
from a2cap.data.features.shard import shards_in
from a2cap.data.files.atomic import write_durably

DATA_FILE = "data.mdb"
SEAL_FILE = "seal.json"


class StoreSeal(BaseModel):
    """What a finished feature store holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    count: int = Field(ge=0)
    """Images in the store."""
    feature_width: int = Field(ge=0)
    """F, the numbers per region; 0 in a store without images."""
    dtype: FeatureType
    """Type in which features are stored."""
    bytes: int = Field(ge=0)
    """Size of the data files: reading a shorter one through its map would kill the process."""
    digest: str
    """sha256 over the sorted records: equal for equal content, however it was written."""
    file_sha256: str
    """sha256 of the data file, which tells damage outside of the records too; over shards, that
    of the shards' own in order."""
    shards: tuple[str, ...] = ()
    """Digests of the shards in order; none where the store is one data file."""
    extra: dict[str, str] = {}
    """What the extraction adds, such as the fingerprint of its weights."""


def logical_digest(records: Iterable[tuple[bytes | memoryview, bytes | memoryview]]) -> str:
    """sha256 over (key, value) pairs, which must come in key order; each is led by its length."""
    digest = hashlib.sha256()
    for key, value in records:
        digest.update(len(key).to_bytes(8, "little") + len(value).to_bytes(8, "little"))
        digest.update(key)
        digest.update(value)
    return digest.hexdigest()


def write_seal(store: Path, seal: StoreSeal) -> None:
    """Seal a store: after this returns, the seal survives a power cut; before, there is none."""
    write_durably(store / SEAL_FILE, (seal.model_dump_json(indent=2) + "\n").encode())


def read_seal(store: Path) -> StoreSeal:
    """Seal of a finished store; StoreError where there is no store, no seal, or no valid one."""
    if not (store / DATA_FILE).is_file() and not shards_in(store):
        raise StoreError(f'no feature store at {str(store)!r}; run "a2 extract" first')
    try:
        text = (store / SEAL_FILE).read_text(encoding="utf-8")
        return StoreSeal.model_validate_json(text)
    except FileNotFoundError as error:
        raise StoreError(
            f'extraction into {str(store)!r} is unfinished; run "a2 extract" again to resume it'
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise StoreError(
            f'seal of {str(store)!r} is not readable; run "a2 extract --force"'
        ) from error
