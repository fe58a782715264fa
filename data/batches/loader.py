"""Data loading: the batches of an epoch, split over ranks and prefetched by worker processes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.batches.dataset import ItemKey
from a2cap.data.batches.sampling import epoch_chunks
from a2cap.data.errors import A2Error, LoaderError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.system import allow_open_files, leave_signals_to_the_parent, signals_blocked
from a2cap.data.regions import top_scoring

Key = TypeVar("Key")
Element = TypeVar("Element")
Element_co = TypeVar("Element_co", covariant=True)
Collated = TypeVar("Collated")


class EpochDataset(Protocol[Element_co]):
    """A dataset whose items are named by epoch and index."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: ItemKey, /) -> Element_co: ...


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


def epoch_batches(
    dataset: EpochDataset[Element],
    collate: Callable[[Sequence[Element]], Collated],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    share: Share = ALL,
    groups: NDArray[np.int64] | None = None,
    parts: NDArray[np.int64] | None = None,
    window: int | None = None,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[list[Collated]]:
    """Return the batches of an epoch from number `start` on, each as the micro-batches of `share`.

    groups: of the items, which are not mixed in a batch; parts, window: as of `part_order`. The
    last batch holds the remaining items; a rank may have none of them. The batches are the same for
    any number of workers. Neither reads nor changes the global RNG state.
    """
    chunks = epoch_chunks(
        len(dataset),
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        groups=groups,
        parts=parts,
        window=window,
    )
    batches = [share.of(chunk) for chunk in chunks[start:]]
    # views of one array: a key per item would take a hundred bytes for each image of the epoch
    flat = [part for batch in batches for part in batch]
    items = _Batches(partial(_epoch_item, dataset, epoch), flat, collate)
    loaded = _load(items, workers=workers, pin_memory=pin_memory)
    return (list(islice(loaded, len(batch))) for batch in batches)


def _epoch_item(dataset: EpochDataset[Element], epoch: int, index: np.int64) -> Element:
    return dataset[epoch, int(index)]


def batches_per_epoch(
    dataset: Sized, *, batch_size: int, groups: NDArray[np.int64] | None = None
) -> int:
    """Return the number of batches of an epoch, including partial ones."""
    counts = [len(dataset)] if groups is None else np.unique(groups, return_counts=True)[1]
    return sum(math.ceil(count / batch_size) for count in counts)


def image_batches(
    store: Path,
    image_ids: Sequence[str],
    *,
    batch_size: int,
    max_regions: int | None = None,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Return batches of these images in this order, without captions.

    Raises StoreError before the first batch if an image has no features.
    """
    features = FeatureStore(store)
    features.require(image_ids)
    read = partial(_image_item, features, max_regions)
    items = _Batches(read, _chunks(image_ids, batch_size), collate)
    return _load(items, workers=workers, pin_memory=pin_memory)


def _chunks(keys: Sequence[Key], size: int) -> list[list[Key]]:
    return [list(keys[first : first + size]) for first in range(0, len(keys), size)]


def _image_item(features: FeatureStore, max_regions: int | None, image_id: str) -> Item:
    return Item(image_id, top_scoring(features[image_id], max_regions), None)


@dataclass(frozen=True)
class _Failure:
    """The error in place of a batch that could not be made.

    If a worker raised it, torch would replace the error's text by the worker's traceback.
    """

    error: A2Error


@dataclass(frozen=True)
class _Batches(Dataset[Collated | _Failure], Generic[Key, Element, Collated]):
    """Collated batches by number; keys: of the items of each."""

    read: Callable[[Key], Element]
    keys: Sequence[Iterable[Key]]
    collate: Callable[[Sequence[Element]], Collated]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> Collated | _Failure:
        try:
            return self.collate([self.read(key) for key in self.keys[number]])
        except A2Error as error:
            return _Failure(error)


def _load(
    dataset: _Batches[Key, Element, Collated], *, workers: int, pin_memory: bool
) -> Iterator[Collated]:
    """Yield the batches in order, prefetched by `workers` processes."""
    if workers:
        _require_descriptors(workers)
    loader: DataLoader[Collated | _Failure] = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,  # torch's own would turn arrays into tensors
        pin_memory=pin_memory,
        # without a generator of its own, iterating a DataLoader draws from the global RNG state
        generator=torch.Generator(),
        worker_init_fn=_start_worker,
    )
    with signals_blocked():
        batches = iter(loader)
    try:
        for batch in batches:
            if isinstance(batch, _Failure):
                raise batch.error
            yield batch
    except (ConnectionError, EOFError) as error:  # a worker died while it sent a batch
        raise _worker_died(str(error) or type(error).__name__) from error
    finally:
        del batches  # and with it the workers: the error's traceback holds this frame


def _require_descriptors(workers: int) -> None:
    """Raise the limit of open files to what the workers need; LoaderError if it is fixed."""
    # A worker without a free descriptor drops its batch, and torch waits for it for ever. Every
    # tensor of a prefetched batch takes one: measured up to 10 per worker, without captions.
    needed = 64 + 24 * workers
    most = allow_open_files(needed)
    if most is not None:
        raise LoaderError(
            f"too few open files are allowed for {workers} loader workers: {most}, about {needed} "
            f"needed; raise the limit (ulimit -n {needed}), or lower runtime.workers"
        )


def _unchanged(batch: Collated) -> Collated:
    return batch


def loader_error(error: Exception) -> LoaderError | None:
    """Return the error to raise if torch reports a dead worker, None for any other error."""
    # torch raises a bare RuntimeError, from a signal handler: wherever the parent is
    if not str(error).startswith("DataLoader worker"):
        return None
    return _worker_died(str(error))


def _worker_died(reason: str) -> LoaderError:
    return LoaderError(
        f"a data loader worker died: {' '.join(reason.split())}; the newest checkpoint is kept, "
        "lower runtime.workers or the batch size if memory ran out, and run again"
    )


def _start_worker(worker: int) -> None:
    leave_signals_to_the_parent()
