"""Shards become one store: checked against each other, then sealed together where they lie."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from a2cap.data.errors import StoreError
from a2cap.data.features.lmdb_file import FeatureFile, Record
from a2cap.data.features.record import check_record
from a2cap.data.features.seal import SEAL_FILE, StoreSeal, logical_digest, read_seal, write_seal
from a2cap.data.features.shard import Shard, complete_shards
from a2cap.data.features.store import merged_records


def seal_shards(store: Path) -> StoreSeal:
    """Seals a store whose shards are all sealed; its digest is that of a store without shards.

    StoreError, naming them, where shards are missing, unfinished or damaged, hold one image
    twice, or were not made alike.
    """
    files = _finished_files(store)
    _check_apart(store, files)
    seals = [file.seal for file in files.values()]
    seal = StoreSeal(
        count=sum(seal.count for seal in seals),
        feature_width=_shared_width(store, files),
        dtype=seals[0].dtype,
        bytes=sum(seal.bytes for seal in seals),
        digest=logical_digest(_sound(merged_records(files.values()))),
        file_sha256=hashlib.sha256(
            "".join(seal.file_sha256 for seal in seals).encode()
        ).hexdigest(),
        shards=tuple(seal.digest for seal in seals),
    )
    write_seal(store, seal)
    return seal


def _finished_files(store: Path) -> dict[Shard, FeatureFile]:
    shards = complete_shards(store)
    unfinished = [str(shard) for shard in shards if not (store / shard.folder / SEAL_FILE).exists()]
    if unfinished:
        raise StoreError(
            f"shards {', '.join(unfinished)} of {str(store)!r} are unfinished; "
            'run "a2 extract --shard" for each'
        )
    folders = {shard: store / shard.folder for shard in shards}
    return {shard: FeatureFile(folder, read_seal(folder)) for shard, folder in folders.items()}


def _check_apart(store: Path, files: Mapping[Shard, FeatureFile]) -> None:
    holders: dict[bytes, Shard] = {}
    for shard, file in files.items():
        for key in file:
            if key in holders:
                raise StoreError(
                    f"shards {holders[key]} and {shard} of {str(store)!r} overlap: both hold image "
                    f"{key.decode()!r}; remove the one that does not belong there"
                )
            holders[key] = shard


def _shared_width(store: Path, files: Mapping[Shard, FeatureFile]) -> int:
    """F of all shards that hold images; StoreError where they differ in it or in their dtype."""
    kinds = {
        (file.seal.feature_width, file.seal.dtype): shard
        for shard, file in files.items()
        if file.seal.count
    }
    if len(kinds) > 1:
        (width, dtype), (other_width, other_dtype) = list(kinds)[:2]
        first, second = list(kinds.values())[:2]
        raise StoreError(
            f"shards {first} and {second} of {str(store)!r} are not alike: features of "
            f"{width} {dtype} and of {other_width} {other_dtype}; extract all with one extractor"
        )
    return next(iter(kinds), (0, ""))[0]


def _sound(records: Iterator[Record]) -> Iterator[Record]:
    """The records, unchanged; StoreError at one that does not match its checksum."""
    for key, value in records:
        check_record(value, bytes(key).decode())
        yield key, value
