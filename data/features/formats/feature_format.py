"""The interface of third-party formats of region features.

Values that a format does not store are not guessed: scores are 0, classes -1, and the sizes of the
images have to be given.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.identities import AmbiguousIdError
from a2cap.data.regions import NO_CLASS, Regions

Ids = Callable[[str], str]
"""Name of an image in a file -> its image id."""

Sizes = Mapping[str, tuple[int, int]]
"""Image id -> width and height of the image in pixels."""


@dataclass(frozen=True)
class ImageFeatures:
    """An image id and the region features of that image."""

    image_id: str
    regions: Regions


class Source(Protocol):
    """The reader of a file or folder."""

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        """Yield every image in the order of the file, or a SkippedItem if it cannot be read."""

    def __len__(self) -> int:
        """Return the number of images, including those that cannot be read."""


class ContentChecksum:
    """A checksum of ids, boxes and features that is equal in any format and any order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, image_id: str, regions: Regions) -> None:
        """Add one image."""
        digest = hashlib.sha256(image_id.encode())
        digest.update(np.ascontiguousarray(regions.boxes, "<f4").tobytes())
        digest.update(np.ascontiguousarray(regions.features, "<f4").tobytes())
        self._sum += int.from_bytes(digest.digest(), "big")
        self.count += 1

    def hexdigest(self) -> str:
        """Return the sum of the sha256 of all images, which does not depend on their order."""
        return f"{self._sum % (1 << 256):064x}"


def read_or_skip(name: str, read: Callable[[], ImageFeatures]) -> ImageFeatures | SkippedItem:
    """Return the image that `read` reads, or a SkippedItem of this name if it is damaged."""
    try:
        return read()
    except AmbiguousIdError:
        raise  # concerns all images of the file
    except KeyError as error:
        return SkippedItem(name, str(error.args[0]))  # str(error) would add quotes
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # each format's reader raises types of its own
        return SkippedItem(name, str(error))


def make_regions(
    boxes: NDArray[np.float32],
    features: NDArray[np.float32],
    *,
    size: tuple[int, int],
    scores: NDArray[np.float32] | None = None,
    class_ids: NDArray[np.int32] | None = None,
    attribute_ids: NDArray[np.int32] | None = None,
    attribute_scores: NDArray[np.float32] | None = None,
) -> Regions:
    """Build regions, with 0 as unknown scores and NO_CLASS as unknown classes.

    boxes: (R, 4) float32; features: (R, F) float32; size: width and height of the image. Raises
    InputError for other shapes and for boxes outside the image.
    """
    if features.ndim != 2 or boxes.shape != (len(features), 4):
        raise InputError(
            f"boxes of shape {boxes.shape} do not fit features of shape {features.shape}; "
            "create the file again"
        )
    count = len(boxes)
    # boxes of caffe end at the last pixel, others after it: one more allows for rounding
    limits = np.array([*size, *size], np.float32) + 1
    outside = ~((boxes >= -1) & (boxes <= limits)).all(axis=1)
    if outside.any():
        raise InputError(
            f"box {outside.argmax()} is outside the image of {size[0]} x {size[1]} pixels: "
            f"{boxes[outside][0].tolist()}; check the sizes of the images"
        )
    return Regions(
        boxes=boxes,
        features=features,
        scores=np.zeros(count, np.float32) if scores is None else scores,
        class_ids=np.full(count, NO_CLASS, np.int32) if class_ids is None else class_ids,
        attribute_ids=attribute_ids,
        attribute_scores=attribute_scores,
        width=size[0],
        height=size[1],
    )


def image_size(image_id: str, sizes: Sizes) -> tuple[int, int]:
    """Return width and height of an image; raise InputError if they are unknown."""
    try:
        return sizes[image_id]
    except KeyError:
        raise InputError(
            f"size of image {image_id!r} is unknown; name the folder of the images, or a COCO "
            "file that lists it, with --sizes or data.sizes"
        ) from None
