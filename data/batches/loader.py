"""Data loading: the batches of an epoch, split over ranks and prefetched by threads."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.batches.dataset import ItemKey
from a2cap.data.batches.sampling import epoch_chunks
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import top_scoring

Key = TypeVar("Key")
Element = TypeVar("Element")
Element_co = TypeVar("Element_co", covariant=True)
Collated = TypeVar("Collated")


class EpochDataset(Protocol[Element_co]):
    """A dataset whose items are named by epoch and index."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: ItemKey, /) -> Element_co: ...

    def sizes(self) -> dict[str, int]:
        """Return the numbers of what it has, by name, such as images."""


@dataclass(frozen=True)
class Share:
    """The part of every batch that one rank computes, split into micro-batches.

    Items are dealt out round-robin, so that the batch as a whole depends on none of the numbers.
    """

    rank: int = 0
    ranks: int = 1
    micro_batches: int = 1

    def of(self, batch: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the non-empty micro-batches of this rank."""
        dealt = batch[self.rank :: self.ranks]
        parts = [dealt[part :: self.micro_batches] for part in range(self.micro_batches)]
        return [part for part in parts if len(part)]


ALL = Share()


@dataclass(frozen=True)
class Batches(Generic[Element, Collated]):
    """The batches of a training, each as the micro-batches of `share`.

    groups: of the items, which are not mixed in a batch; parts, window: as of `part_order`. The
    last batch holds the remaining items; a rank may have none of them. The batches are the same for
    any number of workers. Neither reads nor changes the global RNG state.
    """

    dataset: EpochDataset[Element]
    collate: Callable[[Sequence[Element]], Collated]
    batch_size: int
    seed: int
    share: Share = ALL
    groups: NDArray[np.int64] | None = None
    parts: NDArray[np.int64] | None = None
    window: int | None = None
    workers: int = 0

    def __len__(self) -> int:
        count, groups = len(self.dataset), self.groups
        counts = [count] if groups is None else np.unique(groups, return_counts=True)[1]
        return sum(math.ceil(count / self.batch_size) for count in counts)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[list[Collated]]:
        """Return the batches of an epoch, which count from 0, from batch `start` on."""
        chunks = epoch_chunks(
            len(self.dataset),
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=epoch,
            groups=self.groups,
            parts=self.parts,
            window=self.window,
        )
        batches = [self.share.of(chunk) for chunk in chunks[start:]]

        def make(part: NDArray[np.int64]) -> Collated:
            return self.collate([self.dataset[epoch, int(index)] for index in part])

        parts = (part for batch in batches for part in batch)
        loaded = _load(make, parts, workers=self.workers)
        return (list(islice(loaded, len(batch))) for batch in batches)


def image_batches(
    store: Path,
    image_ids: Sequence[str],
    *,
    batch_size: int,
    max_regions: int | None = None,
    workers: int = 0,
) -> Iterator[Batch]:
    """Return batches of these images in this order, without captions.

    Raises StoreError before the first batch if an image has no features.
    """
    features = FeatureStore(store)
    features.require(image_ids)

    def make(first: int) -> Batch:
        ids = image_ids[first : first + batch_size]
        return collate([Item(i, top_scoring(features[i], max_regions), None) for i in ids])

    return _load(make, range(0, len(image_ids), batch_size), workers=workers)


def _load(
    make: Callable[[Key], Collated], keys: Iterable[Key], *, workers: int
) -> Iterator[Collated]:
    """Yield the batch of each key in order; `workers` threads make two each ahead."""
    if not workers:
        yield from map(make, keys)
        return
    # threads, because LMDB, torch and OpenCV release Python's lock: processes would copy every
    # batch through shared memory, which takes several times as long as to make it
    pool = ThreadPoolExecutor(workers, "loader")
    ahead = deque[Future[Collated]]()
    try:
        for key in keys:
            ahead.append(pool.submit(make, key))
            if len(ahead) == 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:  # also where the caller stops early
        pool.shutdown(cancel_futures=True)
