"""The joint seal of a store in shards, which are checked against each other and stay in place."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from a2cap.data.errors import StoreError
from a2cap.data.features.feature_file import FeatureFile, open_file
from a2cap.data.features.record import checked_records
from a2cap.data.features.seal import SEAL_FILE, StoreSeal, logical_digest, write_seal
from a2cap.data.features.shard import Shard, complete_shards
from a2cap.data.features.store import merge_records


def seal_shards(store: Path) -> StoreSeal:
    """Seal a store whose shards are all sealed; its digest equals that of a store without shards.

    Raises StoreError, naming the shards, if some are missing, unfinished, damaged or overlapping,
    or differ in feature width or dtype.
    """
    files = _sealed_files(store)
    _check_disjoint(store, files)
    seals = [file.seal for file in files.values()]
    checksums = "".join(seal.file_sha256 for seal in seals)
    seal = StoreSeal(
        count=sum(seal.count for seal in seals),
        feature_width=_common_width(store, files),
        dtype=seals[0].dtype,
        bytes=sum(seal.bytes for seal in seals),
        # over the records in order of their keys, as in a store without shards
        digest=logical_digest(checked_records(merge_records(files.values()))),
        file_sha256=hashlib.sha256(checksums.encode()).hexdigest(),
        shards=tuple(seal.digest for seal in seals),
    )
    write_seal(store, seal)
    return seal


def _sealed_files(store: Path) -> dict[Shard, FeatureFile]:
    shards = complete_shards(store)
    unfinished = [str(shard) for shard in shards if not (store / shard.folder / SEAL_FILE).exists()]
    if unfinished:
        raise StoreError(
            f"shards {', '.join(unfinished)} of {str(store)!r} are unfinished; "
            'run "a2 extract --shard" for each'
        )
    return {shard: open_file(store / shard.folder) for shard in shards}


def _check_disjoint(store: Path, files: Mapping[Shard, FeatureFile]) -> None:
    holders: dict[bytes, Shard] = {}
    for shard, file in files.items():
        for key in file:
            if key in holders:
                raise StoreError(
                    f"shards {holders[key]} and {shard} of {str(store)!r} overlap: "
                    f"both contain image {key.decode()!r}; remove the wrong shard"
                )
            holders[key] = shard


def _common_width(store: Path, files: Mapping[Shard, FeatureFile]) -> int:
    """Return F of all shards with images; raise StoreError if they differ in it or in dtype."""
    seals = {shard: file.seal for shard, file in files.items() if file.seal.count}
    shapes = {(seal.feature_width, seal.dtype): shard for shard, seal in seals.items()}
    if len(shapes) > 1:
        (((width, dtype), first), ((other_width, other_dtype), second)) = list(shapes.items())[:2]
        raise StoreError(
            f"shards {first} and {second} of {str(store)!r} differ: features of "
            f"{width} {dtype} and of {other_width} {other_dtype}; extract all with one extractor"
        )
    return next(iter(shapes), (0, ""))[0]
