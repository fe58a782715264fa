"""Region features of third-party files: from the arrays of an image to its regions.

Values that a file does not contain are not guessed: scores are 0, classes -1, and the sizes of the
images have to be given.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from a2cap.data.box_check import BoxOrder
from a2cap.data.errors import InputError
from a2cap.data.features.formats.number_types import NumberType
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import AmbiguousIdError
from a2cap.data.image_ids import named_id
from a2cap.data.regions import Regions

Sizes = Mapping[str, tuple[int, int]]
"""Image id -> width and height of the image in pixels."""

Ids = Callable[[str], str]
"""Name of an image in a file -> its image id."""

Item_co = TypeVar("Item_co", covariant=True)

Arrays = Mapping[str, object]
"""What a file has of an image, by name: arrays, numbers, texts, and arrays in base64."""


@dataclass(frozen=True)
class ImageFeatures:
    """An image id and the region features of that image."""

    image_id: str
    regions: Regions


@dataclass(frozen=True)
class Reading:
    """How files are read whose arrays do not state it.

    sizes: of the images, for layouts without them; order: of the numbers of a box, by default x1 y1
    x2 y2; number_type: of features in base64; ids: by default, a name is that of a file, or the id
    in formats of a2.
    """

    sizes: Sizes = field(default_factory=dict)
    order: BoxOrder = "xyxy"
    number_type: NumberType = "float32"
    ids: Ids | None = None

    def image_id(self, name: str) -> str:
        """Return the id of an image by its name in a third-party file."""
        return (self.ids or named_id)(name)

    def own_id(self, name: str) -> str:
        """Return the id of an image by its name in a file of a2."""
        return (self.ids or str)(name)


class Entry(NamedTuple):
    """An image in a container: its name, empty if it is unknown, its arrays, and its position."""

    name: str
    read: Callable[[], Arrays]
    position: str = ""


class Listing(Protocol[Item_co]):
    """The images of a file or folder."""

    @property
    def title(self) -> str:
        """What it was recognised as; of a layout, after an image was read."""

    def __iter__(self) -> Iterator[Item_co]:
        """Yield every image in the order of the file."""

    def __len__(self) -> int:
        """Return the number of images, including those that cannot be read."""


Container = Listing[Entry]
"""A file or folder with the arrays of images."""

Source = Listing[ImageFeatures | SkippedItem]
"""The reader of a file or folder; a SkippedItem stands for an image that cannot be read."""


@dataclass(frozen=True)
class Entries:
    """A container whose images are known before they are read."""

    title: str
    entries: Sequence[Entry]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


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


def skipped_item(name: str, error: Exception) -> SkippedItem:
    """Return a damaged image with the reason; raise what says nothing about the image."""
    if isinstance(error, MemoryError | AmbiguousIdError):
        raise error  # of this machine, and of all images of the file
    # str of a KeyError would add quotes
    return SkippedItem(name, str(error.args[0] if isinstance(error, KeyError) else error))


def image_size(image_id: str, sizes: Sizes) -> tuple[int, int]:
    """Return width and height of an image; raise InputError if they are unknown."""
    try:
        return sizes[image_id]
    except KeyError:
        raise InputError(
            f"size of image {image_id!r} is unknown; name the folder of the images, or a COCO "
            "file that lists it, with --sizes or data.sizes"
        ) from None
