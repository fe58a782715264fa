"""The reader of a finished feature store, in one data file or in shards."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import merge
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import A2Error, StoreError
from a2cap.data.features.feature_record import CHECKSUM_SIZE, decode_regions, record_key
from a2cap.data.features.lmdb_file import LmdbFile
from a2cap.data.features.store_manifest import (
    DATA_FILE,
    REMEDY,
    StoreFacts,
    facts_of,
    joint_digest,
    read_store_manifest,
    shard_name,
)
from a2cap.data.files.sealed_folder import problems, seal
from a2cap.data.image_ids import sample_ids
from a2cap.data.regions import Regions

_OPEN_SHARDS = 128
"""Shards that are kept open; a process may have few open files."""


class FeatureStore:
    """The regions of every image of a sealed store by image id, in key order.

    Raises StoreError if there is no store at `path` or its extraction is unfinished.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = read_store_manifest(path)
        self.facts = facts_of(manifest, path)
        self.feature_width = self.facts.feature_width  # F, the features per region
        shards = map(shard_name, range(self.facts.shards))
        names = [path / name for name in shards] or [path]
        digests = {path / name: output.sha256 for name, output in manifest.outputs.items()}
        self._files = [LmdbFile(name, digests.get(name)) for name in names]
        self._open: OrderedDict[int, None] = OrderedDict()
        self._lock = Lock()  # of threads that load batches

    @property
    def digest(self) -> str:
        """Digest of the records: equal for stores of equal content, in shards or not."""
        return self.facts.digest

    def __getitem__(self, image_id: str) -> Regions:
        key = record_key(image_id)
        for file in self._candidates(key):
            record = file.get(key)
            if record is not None:
                return decode_regions(record, image_id)
        raise StoreError(
            f'no features for image {image_id!r} in {str(self.path)!r}; run "a2 extract" first'
        )

    def checksum(self, image_id: str) -> bytes | None:
        """Return the checksum of an image's record as it is stored, None for an unknown image."""
        key = record_key(image_id)
        ends = (file.get(key, -CHECKSUM_SIZE) for file in self._candidates(key))
        return next((bytes(end) for end in ends if end is not None), None)

    def __contains__(self, image_id: object) -> bool:
        try:
            key = record_key(str(image_id))
        except StoreError:
            return False
        return any(key in file for file in self._candidates(key))

    def __len__(self) -> int:
        return self.facts.count

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, merge(*map(self._keys, range(len(self._files)))))

    def _keys(self, number: int) -> Iterator[bytes]:
        """Return the keys of a data file, and close a shard unless it is being read."""
        keys = iter(self._files[number])
        if self.facts.shards and number not in self._open:
            self._files[number].close()
        return keys

    def shard_of(self, image_id: str) -> int:
        """Return the number of the shard that contains an image; 0 in a store without shards."""
        return next(self._shards(record_key(image_id)), 0)

    def require(self, image_ids: Iterable[str]) -> None:
        """Raise StoreError, naming the first few, unless every image has features."""
        stored = set(self)
        missing = [image_id for image_id in image_ids if image_id not in stored]
        if missing:
            sample = sample_ids(list(map(repr, missing)))
            raise StoreError(
                f"no features for {len(missing)} images in {str(self.path)!r}: {sample}; "
                'run "a2 extract" first'
            )

    def require_width(self, expected: int) -> None:
        """Raise StoreError unless regions are as wide as those that a model was trained on."""
        if self.feature_width != expected:
            raise StoreError(
                f"region width of {str(self.path)!r} is {self.feature_width}, the model expects "
                f"{expected}; retrain, or extract with the checkpoint that it was trained on"
            )

    def verify(self, data: bool = False) -> list[str]:
        """Return the problems found; with `data`, read every byte."""
        try:
            lines = problems(self.path, digests=data)
        except A2Error as error:
            return [str(error)]
        return [f"{problem}; {REMEDY}" for problem in lines]

    @cached_property
    def _index(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Sorted hashes of the ids, and the shard of each: 12 bytes per image."""
        hashes, numbers = [], []
        for number, file in enumerate(self._files):
            hashes.append(np.fromiter(map(_hash, file), np.uint64))
            numbers.append(np.full(len(hashes[-1]), number, np.int32))
            file.close()
        unsorted = np.concatenate(hashes)
        order = np.argsort(unsorted, kind="stable")
        return unsorted[order], np.concatenate(numbers)[order]

    def _shards(self, key: bytes) -> Iterator[int]:
        """Return the shards that may contain a key: one, but for ids of equal hash."""
        if not self.facts.shards:
            return iter((0,))
        (hashes, numbers), target = self._index, np.uint64(_hash(key))
        first = np.searchsorted(hashes, target, side="left")
        last = np.searchsorted(hashes, target, side="right")
        return map(int, numbers[first:last])

    def _candidates(self, key: bytes) -> list[LmdbFile]:
        """Return the data files that may contain a key; close those not used for longest."""
        with self._lock:
            numbers = list(self._shards(key))
            for number in numbers:
                self._open[number] = None
                self._open.move_to_end(number)
                if len(self._open) > _OPEN_SHARDS:
                    self._files[self._open.popitem(last=False)[0]].close()
            return [self._files[number] for number in numbers]


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def seal_shards(store: Path, count: int) -> StoreFacts:
    """Seal a store as the list of its `count` sealed shards, which stay where they are.

    Raises StoreError, naming them, if shards are missing or differ in feature width or dtype.
    """
    names = list(map(shard_name, range(count)))
    missing = [name for name in names if not (store / name / DATA_FILE).is_file()]
    if missing:
        raise StoreError(
            f"{len(missing)} of {len(names)} shards of {str(store)!r} are missing: "
            f'{sample_ids(missing)}; run "a2 extract" again'
        )
    sealed = {name: facts_of(read_store_manifest(store / name), store / name) for name in names}
    used = {name: facts for name, facts in sealed.items() if facts.count} or sealed
    shapes = {(facts.feature_width, facts.dtype): name for name, facts in used.items()}
    if len(shapes) > 1:
        (((width, dtype), first), ((other_width, other_dtype), second)) = list(shapes.items())[:2]
        raise StoreError(
            f"shards {first} and {second} of {str(store)!r} differ: features of "
            f"{width} {dtype} and of {other_width} {other_dtype}; extract all with one extractor"
        )
    ((width, dtype),) = shapes
    facts = StoreFacts(
        count=sum(f.count for f in sealed.values()),
        feature_width=width,
        dtype=dtype,
        digest=joint_digest(f.digest for f in sealed.values()),
        shards=count,
    )
    seal(store, names, facts=facts.model_dump(mode="json"))
    return facts
