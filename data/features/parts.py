"""The parts of a plan: feature stores that any number of workers filled, read where they are.

The folder of a plan contains `plan.json`, and of each finished part its store `PART/`, the record
`PART.done.json` and, if images failed, `PART.failed.jsonl`. A part is a shard of the plan, `00017`,
or a later attempt at its failed images, `00017.r1`.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from a2cap.data.errors import StoreError
from a2cap.data.features.feature_file import FeatureFile, open_file
from a2cap.data.features.seal import DONE, FAILED, PLAN, StoreSeal, remedy
from a2cap.data.files.json_file import read_json, write_json

POINTER = "parts.json"
"""File in place of a store, with the folder of the plan whose parts are its content."""

_MISSING_NAMED = 5


class DoneRecord(BaseModel):
    """The record of a finished part."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    count: int
    """Images with features."""
    failed: int
    """Images without."""
    digest: str
    """sha256 of the records, as in the seal of the part's store."""
    fingerprint: str
    """Digest of the weights and settings of the extraction."""
    host: str
    """Host of the worker that finished it."""
    seconds: float
    """Duration of its work."""
    ended: float
    """Time of its end, in seconds since 1970."""


def read_done(folder: Path) -> dict[str, DoneRecord]:
    """Return the records of all finished parts, by part; raise StoreError for a damaged one."""
    found = {}
    for path in sorted(folder.glob(f"*.{DONE}")):
        try:
            found[path.name.removesuffix(f".{DONE}")] = DoneRecord.model_validate_json(
                path.read_bytes()
            )
        except ValidationError as error:
            raise StoreError(
                f"record {str(path)!r} is damaged; remove it, and {_again()}"
            ) from error
    return found


def point_to(parts: Path, store: Path) -> None:
    """Make a store of the parts of a plan, which stay where they are."""
    store.mkdir(parents=True, exist_ok=True)
    write_json(store / POINTER, {"parts": str(parts.resolve())})


def parts_folder(path: Path) -> Path | None:
    """Return the folder of the plan that a path is or points to, None for another store."""
    if (path / PLAN).is_file():
        return path
    if not (path / POINTER).is_file():
        return None
    content = read_json(path / POINTER)
    return Path(str(content["parts"])) if isinstance(content, dict) else None


def open_parts(folder: Path) -> tuple[StoreSeal, list[FeatureFile]]:
    """Return the parts in order, and a seal of all.

    Raises StoreError if shards of the plan are not done, one was changed after it was done, or they
    come from different weights.
    """
    records = read_done(folder)
    _require_all(folder, records)
    prints = {record.fingerprint: part for part, record in records.items()}
    if len(prints) > 1:
        (first, one), (second, other) = list(prints.items())[:2]
        raise StoreError(
            f"parts {one} and {other} of {str(folder)!r} come from different weights or settings: "
            f"{first[:12]} and {second[:12]}; remove the wrong ones, and {_again()}"
        )
    files = []
    for part, record in records.items():
        file = open_file(folder / part)
        if file.seal.digest != record.digest:
            raise StoreError(
                f"part {str(folder / part)!r} was changed after it was done: digest "
                f"{file.seal.digest[:12]}, recorded {record.digest[:12]}; "
                f"{remedy(folder / part)}"
            )
        files.append(file)
    seals = [file.seal for file in files]
    used = [seal for seal in seals if seal.count] or seals
    digests = "".join(seal.digest for seal in seals)
    return StoreSeal(
        count=sum(seal.count for seal in seals),
        feature_width=used[0].feature_width,
        dtype=used[0].dtype,
        bytes=sum(seal.bytes for seal in seals),
        digest=hashlib.sha256(digests.encode()).hexdigest(),
        file_sha256=hashlib.sha256(
            "".join(seal.file_sha256 for seal in seals).encode()
        ).hexdigest(),
    ), files


def _require_all(folder: Path, records: dict[str, DoneRecord]) -> None:
    content = read_json(folder / PLAN)
    shards = len(content["offsets"]) if isinstance(content, dict) else 0
    missing = [part for part in map(shard_name, range(shards)) if part not in records]
    if missing:
        named = ", ".join(missing[:_MISSING_NAMED]) + (", …" * (len(missing) > _MISSING_NAMED))
        raise StoreError(
            f"{len(missing)} of {shards} shards of {str(folder)!r} are not done: {named}; "
            f"{_again()}"
        )


def shard_name(number: int) -> str:
    """Return the name of a shard of a plan."""
    return f"{number:05}"


def failed_images(folder: Path) -> dict[str, str]:
    """Return the reason of every image that failed in the last attempt at it, by id."""
    found: dict[str, str] = {}
    for part in last_attempts(folder).values():
        found |= failed_in(folder, part)
    return found


def last_attempts(folder: Path) -> dict[str, str]:
    """Return the last finished part of each shard that has one."""
    parts = (path.name.removesuffix(f".{DONE}") for path in folder.glob(f"*.{DONE}"))
    ordered = sorted(parts, key=lambda part: (len(part), part))  # r10 after r9
    return {part.partition(".")[0]: part for part in ordered}


def failed_in(folder: Path, part: str) -> dict[str, str]:
    """Return the reason of every image that failed in a part, by id."""
    path = folder / f"{part}.{FAILED}"
    if not path.is_file():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["id"]: line["reason"] for line in lines}


def _again() -> str:
    return 'run the same "a2 extract --plan" again'


@dataclass(frozen=True)
class PartIndex:
    """The part of each image: sorted hashes of ids with the part's number, 12 bytes per image."""

    hashes: NDArray[np.uint64]
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, files: Sequence[FeatureFile]) -> "PartIndex":
        """Read the ids of all parts."""
        hashes, numbers = [], []
        for number, file in enumerate(files):
            found = np.fromiter(map(_hash, file), np.uint64)
            hashes.append(found)
            numbers.append(np.full(len(found), number, np.int32))
            file.close()
        every = np.concatenate([*hashes, np.zeros(0, np.uint64)])
        order = np.argsort(every, kind="stable")
        return cls(every[order], np.concatenate([*numbers, np.zeros(0, np.int32)])[order])

    def find(self, key: bytes) -> Iterator[int]:
        """Return the parts that may contain a key: one, but for ids of equal hash."""
        wanted = _hash(key)
        first = np.searchsorted(self.hashes, np.uint64(wanted), side="left")
        last = np.searchsorted(self.hashes, np.uint64(wanted), side="right")
        return map(int, self.numbers[first:last])


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
