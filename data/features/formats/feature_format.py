"""Region features as other projects store them: what every reader and writer here has in common.

A reader yields one image after the other; an image that cannot be read is yielded as a
SkippedItem and the next one follows. A writer can be left at any moment and be made again for the
same place: it
then knows what it holds. What a format does not store is not guessed: scores are then 0 and classes
-1, and sizes of images have to be given.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.regions import Regions

UNKNOWN_CLASS = -1
"""Class of a region where the file does not say one."""

Sizes = Mapping[str, tuple[int, int]]
"""Image id -> width and height of the image in pixels."""


@dataclass(frozen=True)
class ImageRegions:
    """One image's regions."""

    image_id: str
    regions: Regions


class Source(Protocol):
    """Features of one file or folder."""

    def __iter__(self) -> Iterator[ImageRegions | SkippedItem]:
        """Every image in the order of the file; SkippedItem where one cannot be read."""

    def __len__(self) -> int:
        """Images, those that cannot be read included."""


class Target(Protocol):
    """A file or folder that is being filled."""

    def __contains__(self, image_id: object) -> bool:
        """Whether an image has been added, in this run or an earlier one."""

    def add(self, image_id: str, regions: Regions) -> None:
        """Adds one image; InputError where the format cannot hold it."""

    def finish(self) -> None:
        """Makes what was added the result at the place that was named."""

    def close(self) -> None:
        """Leaves what was added to be taken up later."""


class ContentChecksum:
    """Equal for equal boxes and features of equal images, in any format and any order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, image_id: str, regions: Regions) -> None:
        """Counts one image."""
        digest = hashlib.sha256(image_id.encode())
        digest.update(np.ascontiguousarray(regions.boxes, "<f4").tobytes())
        digest.update(np.ascontiguousarray(regions.features, "<f4").tobytes())
        self._sum += int.from_bytes(digest.digest(), "big")
        self.count += 1

    def hexdigest(self) -> str:
        """Sum of the images' sha256, which does not depend on their order."""
        return f"{self._sum % (1 << 256):064x}"


def checksum(source: Iterable[ImageRegions | SkippedItem]) -> ContentChecksum:
    """Of all images that can be read."""
    total = ContentChecksum()
    for item in source:
        if isinstance(item, ImageRegions):
            total.add(item.image_id, item.regions)
    return total


def regions_of(
    boxes: NDArray[np.float32],
    features: NDArray[np.float32],
    *,
    width: int,
    height: int,
    scores: NDArray[np.float32] | None = None,
    class_ids: NDArray[np.int32] | None = None,
    attribute_ids: NDArray[np.int32] | None = None,
) -> Regions:
    """Regions with what is not known marked as such; boxes: (R, 4); features: (R, F)."""
    count = len(boxes)
    return Regions(
        boxes=boxes,
        features=features,
        scores=np.zeros(count, np.float32) if scores is None else scores,
        class_ids=np.full(count, UNKNOWN_CLASS, np.int32) if class_ids is None else class_ids,
        attribute_ids=attribute_ids,
        width=width,
        height=height,
    )


def decimal_id(image_id: str, *, place: Path) -> int:
    """The number of an image, for formats that know only numbers; InputError for other ids."""
    if not (image_id.isascii() and image_id.isdigit()):
        raise InputError(
            f"image {image_id!r} has no number, which {place.name!r} needs; "
            "convert to another format"
        )
    return int(image_id)


def size_of_image(image_id: str, sizes: Sizes) -> tuple[int, int]:
    """Width and height; InputError where they are not known."""
    try:
        return sizes[image_id]
    except KeyError:
        raise InputError(
            f"size of image {image_id!r} is not known; name the folder of its images, or a COCO "
            "file that lists it, with --sizes"
        ) from None
