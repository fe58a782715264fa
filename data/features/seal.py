"""The seal of a finished feature store: a JSON file beside its data.

A store without a seal is an unfinished extraction.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2cap.data.errors import StoreError
from a2cap.data.features.record import FeatureType
from a2cap.data.features.shard import shards_in
from a2cap.data.files.atomic import write_durably

Form = Literal["lmdb", "tar", "parquet"]
"""Form of a data file."""

DATA_FILE = "data.mdb"
DATA_FILES: dict[Form, str] = {"lmdb": DATA_FILE, "tar": "data.tar", "parquet": "data.parquet"}
SEAL_FILE = "seal.json"
REMEDY = 'run "a2 extract --force"'
"""What restores a damaged store."""


class StoreSeal(BaseModel):
    """Content and digests of a finished feature store."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    count: int = Field(ge=0)
    """Images in the store."""
    feature_width: int = Field(ge=0)
    """F, the features per region; 0 in a store without images."""
    dtype: FeatureType
    """Data type of the stored features."""
    bytes: int = Field(ge=0)
    """Size of the data files: reading beyond the end of a mapped file would kill the process."""
    digest: str
    """sha256 of the sorted records: equal for equal content, unlike the file of LMDB."""
    file_sha256: str
    """sha256 of the data file, which also detects damage outside of the records; with shards, the
    sha256 of theirs in order."""
    form: Form = "lmdb"
    """Form of the data file; seals of LMDB do not state it."""
    shards: tuple[str, ...] = ()
    """Digests of the shards in order; empty for a store in one data file."""
    extra: dict[str, str] = {}
    """Not written any more; seals of earlier stores contain it."""

    def data_file(self, store: Path) -> Path:
        """Return the data file; raise StoreError if it does not have the sealed size."""
        path = store / DATA_FILES[self.form]
        found = path.stat().st_size
        if found != self.bytes:
            raise StoreError(
                f"{str(store)!r} has {found} bytes, its seal {self.bytes}; "
                f"copy it again, or {REMEDY}"
            )
        return path


def logical_digest(records: Iterable[tuple[bytes | memoryview, bytes | memoryview]]) -> str:
    """Return the sha256 of (key, value) pairs in key order, each preceded by its two lengths."""
    digest = hashlib.sha256()
    for key, value in records:
        digest.update(len(key).to_bytes(8, "little") + len(value).to_bytes(8, "little"))
        digest.update(key)
        digest.update(value)
    return digest.hexdigest()


def write_seal(store: Path, seal: StoreSeal) -> None:
    """Write the seal of a store atomically and durably."""
    # the seal's own digest is in keys, so one of LMDB must not change
    unstated = {"form"} if seal.form == "lmdb" else set()
    text = seal.model_dump_json(indent=2, exclude=unstated)
    write_durably(store / SEAL_FILE, f"{text}\n".encode())


def read_seal(store: Path) -> StoreSeal:
    """Read the seal of a store; raise StoreError if the store or a valid seal is missing."""
    has_data = any((store / name).is_file() for name in DATA_FILES.values())
    if not has_data and not shards_in(store):
        raise StoreError(f'no feature store at {str(store)!r}; run "a2 extract" first')
    try:
        text = (store / SEAL_FILE).read_text(encoding="utf-8")
        return StoreSeal.model_validate_json(text)
    except FileNotFoundError as error:
        raise StoreError(
            f'extraction into {str(store)!r} is unfinished; run "a2 extract" again to resume it'
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise StoreError(f"seal of {str(store)!r} is invalid; {REMEDY}") from error


def damage_error(store: Path, problem: Exception | str) -> StoreError:
    """Return the error of a data file that cannot be read as what it is."""
    return StoreError(f"{str(store)!r} is damaged: {problem}; {REMEDY}")
