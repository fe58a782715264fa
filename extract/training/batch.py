"""Images with their true boxes, as the detector trains on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.input import ScaledSize, scaled_image

NO_ATTRIBUTE = -1
"""Fills rows of `LabelledBatch.attribute_ids`."""


class Labels(Protocol):
    """What is known of one image; `a2cap.data.detection.labels.LabelledImage` is one."""

    @property
    def boxes(self) -> NDArray[np.float32]:
        """(N, 4) x1 y1 x2 y2 in the image's own pixels, edges continuous."""

    @property
    def class_ids(self) -> NDArray[np.int64]:
        """(N,) from 0."""

    @property
    def attribute_ids(self) -> Sequence[Sequence[int]]:
        """Of each box, from 0; none where nothing is known."""

    @property
    def crowd(self) -> NDArray[np.bool_]:
        """(N,) True where a box holds many things that are not told apart."""


@dataclass(frozen=True)
class LabelledBatch:
    """B images and what is in them.

    images: (B, 3, H, W) float32, BGR minus the mean, padded right and below with 0.
    sizes: of each image without its padding.
    boxes: (N, 4) float32 each, x1 y1 x2 y2 in scaled pixels; class_ids: (N,) int64 each.
    attribute_ids: (N, A) int64 each, rows filled up with NO_ATTRIBUTE.
    crowds: (M, 4) float32 each, boxes of things that are not told apart.
    """

    images: Tensor
    sizes: tuple[ScaledSize, ...]
    boxes: tuple[Tensor, ...]
    class_ids: tuple[Tensor, ...]
    attribute_ids: tuple[Tensor, ...]
    crowds: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: torch.device | str) -> "LabelledBatch":
        """The same on a device."""
        return LabelledBatch(
            images=self.images.to(device),
            sizes=self.sizes,
            boxes=tuple(one.to(device) for one in self.boxes),
            class_ids=tuple(one.to(device) for one in self.class_ids),
            attribute_ids=tuple(one.to(device) for one in self.attribute_ids),
            crowds=tuple(one.to(device) for one in self.crowds),
        )


def labelled_batch(
    images: Sequence[NDArray[np.uint8]], labels: Sequence[Labels], *, meta: DetectorMeta
) -> LabelledBatch:
    """Scale images and boxes by the meta, and lay them side by side.

    images: (H, W, 3) uint8 BGR each, of any sizes, scaled to `meta.scale`; boxes without an area
    are left out. Raises InputError where an image is too thin.
    """
    min_side, max_side = meta.scale
    scaled = [scaled_image(one, min_side=min_side, max_side=max_side, meta=meta) for one in images]
    sizes = tuple(size for _, size in scaled)
    targets = [_targets(of, size) for of, size in zip(labels, sizes, strict=True)]
    boxes, class_ids, attribute_ids, crowds = zip(*targets, strict=True)
    return LabelledBatch(
        _padded([torch.from_numpy(blob) for blob, _ in scaled]),
        sizes,
        boxes,
        class_ids,
        attribute_ids,
        crowds,
    )


def _padded(blobs: Sequence[Tensor]) -> Tensor:
    """(3, h, w) each to (B, 3, H, W), the largest of them."""
    height, width = (max(blob.shape[axis] for blob in blobs) for axis in (1, 2))
    return torch.stack(
        [F.pad(blob, (0, width - blob.shape[2], 0, height - blob.shape[1])) for blob in blobs]
    )


def _targets(labels: Labels, size: ScaledSize) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes, classes, attributes and crowds of one image, as in LabelledBatch."""
    given = torch.from_numpy(np.asarray(labels.boxes, np.float32).reshape(-1, 4))
    scaled = given * torch.tensor(size.factors, dtype=torch.float32).repeat(2)
    filled = (scaled[:, 2:] > scaled[:, :2]).all(dim=1)
    crowd = torch.from_numpy(np.asarray(labels.crowd, np.bool_))
    kept = filled & ~crowd
    class_ids = torch.from_numpy(np.asarray(labels.class_ids, np.int64))
    attributes = _rows(labels.attribute_ids)
    return scaled[kept], class_ids[kept], attributes[kept], scaled[filled & crowd]


def _rows(attribute_ids: Sequence[Sequence[int]]) -> Tensor:
    """(N, A) int64; A is that of the box with the most attributes."""
    longest = max((len(ids) for ids in attribute_ids), default=0)
    rows = [[*ids, *[NO_ATTRIBUTE] * (longest - len(ids))] for ids in attribute_ids]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), longest)
