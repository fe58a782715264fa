"""Batches: images padded to a common number of regions, and their captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import InputError
from a2cap.data.regions import Regions


@dataclass(frozen=True)
class Item:
    """One image; tokens: (K, L) int64 padded with 0, or None without captions."""

    image_id: str
    regions: Regions
    tokens: NDArray[np.int64] | None


@dataclass(frozen=True)
class Rounding:
    """Multiples up to which a batch is padded, so that batches have few shapes.

    regions: R of an image; tokens: L of a caption; positions: T per caption of the batch, 0 to pad
    none.
    """

    regions: int = 1
    tokens: int = 1
    positions: int = 0


EXACT = Rounding()
FEW_SHAPES = Rounding(regions=50, tokens=12, positions=4)
"""Shapes of a compiled update: the numbers of regions and tokens of COCO need four of them."""


@dataclass(frozen=True)
class Batch:
    """B images, padded to the largest number of regions R and the longest caption L among them.

    features: (B, R, F) float32, 0 in padding.
    boxes: (B, R, 5) float32: x1, y1, x2, y2 relative to the image's width and height, and the area
    relative to the image's area; 0 in padding. Where relations were predicted, (B, R, 6 + R): then
    the region's number, and the label of its relation to each region by number, 0 for none; so they
    stay with their regions where those are left out or in another order.
    region_mask: (B, R) bool, True where a region exists.
    tokens: (B, K, L) int64, K captions per image, padded with 0; None without captions.
    positions: (T,) int64, of what is not padding in the flattened tokens; on a GPU, to find them
    would wait. None without captions. Those of `Rounding` repeat a position of padding.
    """

    image_ids: tuple[str, ...]
    features: Tensor
    boxes: Tensor
    region_mask: Tensor
    tokens: Tensor | None
    positions: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch on a device; non_blocking only helps with a pinned batch."""
        return self._mapped(lambda values: values.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory."""
        return self._mapped(Tensor.pin_memory)

    def halves(self) -> "list[Batch]":
        """Return the first and the second half without `positions`, or a single image as it is."""
        if len(self.image_ids) == 1:
            return [self]
        middle = -(-len(self.image_ids) // 2)
        halves = []
        for part in (slice(middle), slice(middle, None)):
            half = self._mapped(lambda values, part=part: values[part])  # type: ignore[misc]
            halves.append(replace(half, image_ids=self.image_ids[part], positions=None))
        return halves

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = [item for item in vars(self).items() if isinstance(item[1], Tensor)]
        changed: dict[str, Any] = {name: change(values) for name, values in tensors}
        return replace(self, **changed)


def collate(items: Sequence[Item], *, pinned: bool = False, rounding: Rounding = EXACT) -> Batch:
    """Return the batch of at least one item; all have the same K, or none has tokens.

    pinned: in page-locked memory, from which a GPU copies without waiting. Raises InputError for an
    image without a region.
    """
    counts = [len(item.regions) for item in items]
    most, width = _rounded(max(counts), rounding.regions), items[0].regions.features.shape[1]
    features = torch.empty(len(items), most, width)  # zeros would pass over it twice
    boxes = np.zeros((len(items), most, 4), np.float32)
    region_mask = torch.zeros(len(items), most, dtype=torch.bool)
    for row, item in enumerate(items):
        count = len(item.regions)
        if not count:
            raise InputError(
                f"image {item.image_id!r} has no region; leave it out, or extract it again"
            )
        # float16 stores are widened here, once per batch
        features[row, :count] = torch.from_numpy(item.regions.features)
        features[row, count:] = 0
        boxes[row, :count] = item.regions.boxes
        region_mask[row, :count] = True
    captions = [item.tokens for item in items if item.tokens is not None]
    tokens = _pad(captions, rounding.tokens) if captions else None
    positions = None if tokens is None else token_positions(tokens, rounding)
    # x1, x2 over the image's width, y1, y2 over its height, and the area
    sizes = [[item.regions.width, item.regions.height] * 2 for item in items]
    boxes /= np.array(sizes, dtype=np.float32)[:, None]
    sides = boxes[..., 2:] - boxes[..., :2]
    columns = [boxes, sides[..., :1] * sides[..., 1:]]
    if any(item.regions.relations is not None for item in items):
        columns.append(_labels([item.regions for item in items], most))
    relative = np.concatenate(columns, axis=-1)
    batch = Batch(
        image_ids=tuple(item.image_id for item in items),
        features=features,
        boxes=torch.from_numpy(relative),
        region_mask=region_mask,
        tokens=tokens,
        positions=positions,
    )
    return batch.pin_memory() if pinned else batch


def _labels(images: Sequence[Regions], most: int) -> NDArray[np.float32]:
    """Return the number of each region and the labels of its relations, (B, R, 1 + R)."""
    labels = np.zeros((len(images), most, 1 + most), np.float32)
    for image, regions in enumerate(images):
        labels[image, : len(regions), 0] = np.arange(len(regions))
        if regions.relations is not None:
            subjects, objects, numbers = regions.relations.T
            labels[image, subjects, 1 + objects] = numbers
    return labels


def token_positions(tokens: Tensor, rounding: Rounding) -> Tensor:
    """Return the positions of a batch, (T,) int64, of its tokens (B, K, L)."""
    is_token = (tokens != PAD).flatten()
    positions = is_token.nonzero().squeeze(1)
    captions = tokens.shape[0] * tokens.shape[1]
    count = _rounded(len(positions), max(1, rounding.positions * captions))
    added = min(count, len(is_token)) - len(positions)
    # the loss of a target that is padding is 0, however often it is counted
    padding = (~is_token).nonzero()[:1].flatten().expand(added) if added else positions[:0]
    return torch.cat((positions, padding))


def _rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _pad(tokens: Sequence[NDArray[np.int64]], multiple: int) -> Tensor:
    """Stack B arrays (K, any length) to (B, K, L), cut to the longest caption and rounded up."""
    # the captions of a file are all padded to max_length + 1
    columns = [np.flatnonzero((captions != PAD).any(axis=0)) for captions in tokens]
    longest = max(int(used.max(initial=-1)) + 1 for used in columns)
    shape = (len(tokens), len(tokens[0]), _rounded(longest, multiple))
    padded = torch.full(shape, PAD, dtype=torch.int64)
    for row, captions in enumerate(tokens):
        part = captions[:, :longest]
        padded[row, :, : part.shape[1]] = torch.from_numpy(part)
    return padded
