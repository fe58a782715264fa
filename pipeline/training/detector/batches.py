"""Batches of labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from a2cap.data.batches.dataset import ItemKey
from a2cap.data.batches.sampling import is_mirrored
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.image import read_image
from a2cap.extract.training.batch import LabelledBatch, labelled_batch


@dataclass(frozen=True)
class LabelledItem:
    """An image, (H, W, 3) uint8 BGR, and its labels."""

    pixels: NDArray[np.uint8]
    labels: LabelledImage


@dataclass(frozen=True)
class DetectorPart:
    """A part of a batch, with the ids of its images."""

    image_ids: tuple[str, ...]
    batch: LabelledBatch


class DetectorDataset(Dataset[LabelledItem]):
    """Labelled images by (epoch, index), half of them mirrored if `flip` is set."""

    def __init__(self, data: DetectionData, *, flip: bool, seed: int) -> None:
        self.images = data.images
        self._flip = flip
        self._seed = seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: ItemKey) -> LabelledItem:
        epoch, index = key  # an item depends only on these and the seed, so that a resume is exact
        labels = self.images[index]
        item = LabelledItem(read_image(labels.file), labels)
        if self._flip and is_mirrored(seed=self._seed, epoch=epoch, index=index):
            return mirrored(item)
        return item


def mirrored(item: LabelledItem) -> LabelledItem:
    """Return the image and its boxes with left and right exchanged."""
    width = item.pixels.shape[1]
    boxes = item.labels.boxes.copy()
    # x1 becomes width - x2, so that x1 <= x2 still
    boxes[:, [0, 2]] = width - item.labels.boxes[:, [2, 0]]
    pixels = np.ascontiguousarray(item.pixels[:, ::-1])  # torch takes no negative strides
    return LabelledItem(pixels, replace(item.labels, boxes=boxes))


def collate(items: Sequence[LabelledItem], *, meta: DetectorMeta) -> DetectorPart:
    """Return a part of at least one image, scaled as the detector's meta states."""
    batch = labelled_batch(
        [item.pixels for item in items], [item.labels for item in items], meta=meta
    )
    return DetectorPart(tuple(item.labels.image_id for item in items), batch)
