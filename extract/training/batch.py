"""Batches of labelled images for training a detector."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.detection.labels import LabelledImage
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.input import ScaledSize, padded, scaled_batch

NO_ATTRIBUTE = -1
"""Padding of the rows of `LabelledBatch.attribute_ids`."""


@dataclass(frozen=True)
class LabelledBatch:
    """B images and their labels.

    images: (B, 3, H, W) float32, BGR minus the mean, padded right and below with 0.
    sizes: of the images without padding.
    boxes: (N, 4) float32 each, x1 y1 x2 y2 in scaled pixels.
    class_ids: (N,) int64 each.
    attribute_ids: (N, A) int64 each, rows padded with NO_ATTRIBUTE.
    crowds: (M, 4) float32 each, boxes of crowds.
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
        """Copy all tensors to a device."""
        moved = {
            name: tuple(tensor.to(device) for tensor in getattr(self, name))
            for name in ("boxes", "class_ids", "attribute_ids", "crowds")
        }
        return replace(self, images=self.images.to(device), **moved)


def labelled_batch(
    images: Sequence[NDArray[np.uint8]], labels: Sequence[LabelledImage], *, meta: DetectorMeta
) -> LabelledBatch:
    """Scale images and boxes by the meta, and pad the images to one size.

    images: (H, W, 3) uint8 BGR each, of any sizes, scaled to `meta.scale`; boxes without an area
    are dropped. Raises InputError where an image is too thin.
    """
    blobs, sizes = scaled_batch(images, scale=meta.scale, meta=meta)
    targets = [_targets(*image) for image in zip(labels, sizes, strict=True)]
    boxes, class_ids, attribute_ids, crowds = zip(*targets, strict=True)
    pixels = torch.from_numpy(padded(blobs))
    return LabelledBatch(pixels, tuple(sizes), boxes, class_ids, attribute_ids, crowds)


def _targets(labels: LabelledImage, size: ScaledSize) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return boxes, classes, attributes and crowds of one image, as in LabelledBatch."""
    boxes = torch.from_numpy(np.asarray(labels.boxes, np.float32).reshape(-1, 4))
    scaled = boxes * torch.tensor(size.factors, dtype=torch.float32).repeat(2)
    filled = (scaled[:, 2:] > scaled[:, :2]).all(dim=1)
    crowd = torch.from_numpy(np.asarray(labels.crowd, np.bool_))
    kept = filled & ~crowd
    class_ids = torch.from_numpy(np.asarray(labels.class_ids, np.int64))
    attributes = _rows(labels.attribute_ids)
    return scaled[kept], class_ids[kept], attributes[kept], scaled[filled & crowd]


def _rows(attribute_ids: Sequence[Sequence[int]]) -> Tensor:
    """Return (N, A) int64, padded to the box with the most attributes."""
    longest = max((len(ids) for ids in attribute_ids), default=0)
    rows = [[*ids, *[NO_ATTRIBUTE] * (longest - len(ids))] for ids in attribute_ids]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), longest)
