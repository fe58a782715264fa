"""Batches of images with their captions, and the order in which training sees them.

An item is named by (epoch, index) and is a pure function of these and the seed. Random numbers of
a worker would not do: they begin anew when a training resumes.
"""

import math
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from a2cap.data.batches.sampling import caption_choice, epoch_order
from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import A2Error, ConfigError, InputError, LoaderError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions

Grouping = Literal["image", "caption"]
ItemKey = tuple[int, int]  # (epoch, index)
Key = TypeVar("Key")
Element = TypeVar("Element")
Collated = TypeVar("Collated")

LEFT_TO_THE_PARENT = (signal.SIGINT, signal.SIGTERM)
"""Signals that a loader process lives through, but for those that its parent sends it."""


class CaptionSource(Protocol):
    """What a dataset asks of the captions: `a2cap.data.captions.caption_file.CaptionFile`, or a
    test's stand-in."""

    def image_ids(self, split: str) -> list[str]:
        """Images of a split, always in the same order."""

    def captions(self, image_id: str) -> NDArray[np.int32]:
        """Captions of an image: (n, L) int32, each ended by <eos> and padded with 0."""


@dataclass(frozen=True)
class Item:
    """One image; tokens are (K, L) int64 padded with 0, or None where no captions are asked."""

    image_id: str
    regions: Regions
    tokens: NDArray[np.int64] | None


@dataclass(frozen=True)
class Batch:
    """B images, filled up to the R regions of the richest and the L tokens of the longest.

    features: (B, R, F) float32, 0 where no region exists.
    boxes: (B, R, 5) float32: x1, y1, x2, y2 as shares of the image's width and height, and the
    share of its area; 0 where no region exists.
    region_mask: (B, R) bool, True where a region exists.
    tokens: (B, K, L) int64, K captions per image, padded with 0; None without captions.
    """

    image_ids: tuple[str, ...]
    features: Tensor
    boxes: Tensor
    region_mask: Tensor
    tokens: Tensor | None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device; non_blocking is of use for a pinned batch."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory; the loader calls this where pin_memory is asked."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            image_ids=self.image_ids,
            features=change(self.features),
            boxes=change(self.boxes),
            region_mask=change(self.region_mask),
            tokens=None if self.tokens is None else change(self.tokens),
        )


@dataclass(frozen=True)
class Share:
    """What process `rank` of `processes` computes of every batch, in `parts` one after the other.

    The items of a batch are dealt out in turn, so the batch itself depends on neither number.
    """

    rank: int = 0
    processes: int = 1
    parts: int = 1

    def of(self, batch: Sequence[Key]) -> list[list[Key]]:
        """The parts of this process, those without an item left out."""
        dealt = batch[self.rank :: self.processes]
        parts = [list(dealt[part :: self.parts]) for part in range(self.parts)]
        return [part for part in parts if part]


ALL = Share()


class CaptionDataset(Dataset[Item]):
    """Images of a split with captions, by (epoch, index).

    Grouped by image, an item is an image with `captions_per_image` of its captions, chosen anew
    in every epoch. Grouped by caption, an item is one pair of image and caption. `skipped` are
    the images that extraction could not read: they are left out. StoreError where any other
    image has no features, InputError for a split or an image without captions.
    """

    def __init__(
        self,
        store: Path,
        captions: CaptionSource,
        split: str,
        *,
        captions_per_image: int = 5,
        max_regions: int | None = None,
        seed: int,
        grouping: Grouping = "image",
        skipped: Collection[str] = (),
    ) -> None:
        _check_at_least_one(captions_per_image, "captions per image")
        _check_at_least_one(max_regions, "max regions")
        left_out = set(skipped)
        self.image_ids = [name for name in captions.image_ids(split) if name not in left_out]
        if not self.image_ids:
            raise InputError(f"split {split!r} has no images; check the annotations")
        self.store = FeatureStore(store)
        self.store.require(self.image_ids)
        self._captions = captions
        self._counts = [self._count(image_id) for image_id in self.image_ids]
        self._captions_per_image = captions_per_image
        self._max_regions = max_regions
        self._seed = seed
        self._pairs = self._list_pairs() if grouping == "caption" else None

    def __len__(self) -> int:
        return len(self.image_ids if self._pairs is None else self._pairs)

    def __getitem__(self, key: ItemKey) -> Item:
        epoch, index = key
        if self._pairs is None:
            image = index
            chosen = self._choose(epoch, index)
        else:
            image, caption = self._pairs[index]
            chosen = [caption]
        image_id = self.image_ids[image]
        return Item(
            image_id=image_id,
            regions=strongest(self.store[image_id], self._max_regions),
            tokens=self._captions.captions(image_id)[chosen].astype(np.int64),
        )

    def _choose(self, epoch: int, index: int) -> list[int]:
        return caption_choice(
            self._counts[index],
            self._captions_per_image,
            seed=self._seed,
            epoch=epoch,
            index=index,
        )

    def _list_pairs(self) -> list[tuple[int, int]]:
        return [
            (image, caption) for image, count in enumerate(self._counts) for caption in range(count)
        ]

    def _count(self, image_id: str) -> int:
        count = len(self._captions.captions(image_id))
        if count == 0:
            raise InputError(f"image {image_id!r} has no captions; take it out of the split")
        return count


class _ImageDataset(Dataset[Item]):
    """Images of a store by their id, without captions."""

    def __init__(self, store: FeatureStore, max_regions: int | None) -> None:
        self._store = store
        self._max_regions = max_regions

    def __getitem__(self, image_id: str) -> Item:
        return Item(image_id, strongest(self._store[image_id], self._max_regions), None)


def collate(items: Sequence[Item]) -> Batch:
    """Batch of at least one item; all have the same K, or none has tokens."""
    most = max(len(item.regions) for item in items)
    width = items[0].regions.features.shape[1]
    features = torch.zeros(len(items), most, width)
    boxes = torch.zeros(len(items), most, 5)
    region_mask = torch.zeros(len(items), most, dtype=torch.bool)
    for row, item in enumerate(items):
        count = len(item.regions)
        features[row, :count] = torch.from_numpy(item.regions.features)
        boxes[row, :count] = torch.from_numpy(_box_shares(item.regions))
        region_mask[row, :count] = True
    tokens = [item.tokens for item in items if item.tokens is not None]
    return Batch(
        image_ids=tuple(item.image_id for item in items),
        features=features,
        boxes=boxes,
        region_mask=region_mask,
        tokens=_pad(tokens) if tokens else None,
    )


def training_batches(
    dataset: CaptionDataset,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    share: Share = ALL,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[list[Batch]]:
    """The batches of an epoch from number `start` on, each as the parts that `share` names.

    `batch_size` counts items: images, or pairs where the dataset is grouped by caption. The last
    batch holds what is left, of which a process may have no part. Equal for any number of workers.
    Draws nothing from the global random state.
    """
    _check_at_least_one(batch_size, "batch size")
    return epoch_batches(
        dataset,
        collate,
        count=len(dataset),
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        start=start,
        share=share,
        workers=workers,
        pin_memory=pin_memory,
    )


def epoch_batches(
    dataset: Dataset[Element],
    collate: Callable[[Sequence[Element]], Collated],
    *,
    count: int,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int,
    share: Share,
    workers: int,
    pin_memory: bool = False,
) -> Iterator[list[Collated]]:
    """As `training_batches`, of any dataset of `count` items whose keys are (epoch, index)."""
    order = epoch_order(count, seed=seed, epoch=epoch)
    keys = [(epoch, int(index)) for index in order[start * batch_size :]]
    batches = [share.of(batch) for batch in _chunks(keys, batch_size)]
    parts = [part for batch in batches for part in batch]
    loaded = iter(_loader(dataset, parts, collate, workers=workers, pin_memory=pin_memory))
    return (list(islice(loaded, len(batch))) for batch in batches)


def batches_per_epoch(dataset: CaptionDataset, *, batch_size: int) -> int:
    """Number of batches that an epoch has, the last partial one included."""
    _check_at_least_one(batch_size, "batch size")
    return math.ceil(len(dataset) / batch_size)


def image_batches(
    store: Path,
    image_ids: Sequence[str],
    *,
    batch_size: int,
    max_regions: int | None = None,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterable[Batch]:
    """Batches of these images in this order, without captions.

    StoreError, before the first batch, where an image has no features.
    """
    _check_at_least_one(batch_size, "batch size")
    _check_at_least_one(max_regions, "max regions")
    features = FeatureStore(store)
    features.require(image_ids)
    images = _ImageDataset(features, max_regions)
    batches = _chunks(image_ids, batch_size)
    return _loader(images, batches, collate, workers=workers, pin_memory=pin_memory)


def _loader(
    dataset: Dataset[Element],
    batches: list[list[Key]],
    collate: Callable[[Sequence[Element]], Collated],
    *,
    workers: int,
    pin_memory: bool,
) -> "_Loaded[Collated]":
    """What `collate` makes of each batch of keys, in order, loaded ahead by so many processes."""
    # iterating a DataLoader draws from the global random state, unless it is given a generator
    loaded: Iterable[Collated | _Failure] = DataLoader(
        _Guarded(dataset),
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(_collated, collate),
        pin_memory=pin_memory,
        generator=torch.Generator(),
        worker_init_fn=_leave_signals_to_the_parent,
    )
    return _Loaded(loaded)


@dataclass(frozen=True)
class _Failure:
    """Stands in the place of an item or a batch that could not be made."""

    error: A2Error


@dataclass(frozen=True)
class _Loaded(Generic[Collated]):
    """Batches, as often as they are read; an A2Error that a loader process met is raised as it is.

    torch would put that process's traceback in place of the error's text.
    """

    batches: Iterable[Collated | _Failure]

    def __iter__(self) -> Iterator[Collated]:
        with _signals_held_back():
            batches = iter(self.batches)
        try:
            for batch in batches:
                if isinstance(batch, _Failure):
                    raise batch.error
                yield batch
        except (ConnectionError, EOFError) as error:  # a loader died while it handed over a batch
            raise _lost(str(error) or type(error).__name__) from error
        finally:
            del batches  # and with it its processes: the error's traceback holds this frame


class _Guarded(Dataset[Element | _Failure]):
    """A dataset whose items are failures where it raises an A2Error."""

    def __init__(self, dataset: Dataset[Element]) -> None:
        self._dataset = dataset

    def __getitem__(self, key: object) -> Element | _Failure:
        try:
            return self._dataset[key]
        except A2Error as error:
            return _Failure(error)


def _collated(
    collate: Callable[[Sequence[Element]], Collated], items: Sequence[Element | _Failure]
) -> Collated | _Failure:
    whole: list[Element] = []
    for item in items:
        if isinstance(item, _Failure):
            return item
        whole.append(item)
    try:
        return collate(whole)
    except A2Error as error:
        return _Failure(error)


def loader_error(error: Exception) -> LoaderError | None:
    """What is said where torch reports that a loader process has gone; None for other errors."""
    if not str(error).startswith("DataLoader worker"):
        return None
    return _lost(str(error))


def _lost(reason: str) -> LoaderError:
    return LoaderError(
        f"a loader process has ended: {' '.join(reason.split())}; the newest checkpoint is "
        "kept, lower runtime.workers or the batch size where memory ran out, and run again"
    )


def _leave_signals_to_the_parent(worker: int) -> None:
    """Lets a loader live through a signal to its process group: its parent then stops and ends it.

    Ctrl-C and torchrun signal the group, and a loader that dies would keep the parent from saving.
    One that ignored the parent's own SIGTERM would keep it from ending after an error.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_PARENT)
    threading.Thread(target=_end_when_told_by, args=(os.getppid(),), daemon=True).start()


def _end_when_told_by(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)  # torch takes any other status for a failure


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """While loaders start, which inherit the mask: a signal may come before they are prepared."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _chunks(keys: Sequence[Key], size: int) -> list[list[Key]]:
    return [list(keys[first : first + size]) for first in range(0, len(keys), size)]


def strongest(regions: Regions, most: int | None) -> Regions:
    """The `most` regions of highest score, in the order in which they were; of equals the first."""
    if most is None or len(regions) <= most:
        return regions
    kept = np.sort(np.argsort(-regions.scores, kind="stable")[:most])
    attribute_ids = regions.attribute_ids
    return replace(
        regions,
        boxes=regions.boxes[kept],
        features=regions.features[kept],
        scores=regions.scores[kept],
        class_ids=regions.class_ids[kept],
        attribute_ids=None if attribute_ids is None else attribute_ids[kept],
    )


def _box_shares(regions: Regions) -> NDArray[np.float32]:
    """(R, 5) float32: x1, x2 over the image's width, y1, y2 over its height, and the area."""
    size = np.array([regions.width, regions.height] * 2, dtype=np.float32)
    x1, y1, x2, y2 = (regions.boxes / size).T
    return np.stack([x1, y1, x2, y2, (x2 - x1) * (y2 - y1)], axis=1)


def _pad(tokens: Sequence[NDArray[np.int64]]) -> Tensor:
    """(B, K, L) of B times (K, any length), cut to the longest caption."""
    longest = max(_longest(captions) for captions in tokens)
    padded = torch.full((len(tokens), len(tokens[0]), longest), PAD, dtype=torch.int64)
    for row, captions in enumerate(tokens):
        part = captions[:, :longest]
        padded[row, :, : part.shape[1]] = torch.from_numpy(part)
    return padded


def _longest(captions: NDArray[np.int64]) -> int:
    """L without the columns at the end that are padding in all captions."""
    words = np.flatnonzero((captions != PAD).any(axis=0))
    return int(words.max(initial=-1)) + 1


def _check_at_least_one(value: int | None, name: str) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name}: {value} is below 1; raise it")
