"""The reader of every file: the arrays of an image by name become regions, checked as such.

Values that a file does not contain are not guessed: scores are 0, classes -1, and the sizes of the
images have to be given.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from a2cap.data.box_check import (
    BoxEvidence,
    BoxOrder,
    ConventionError,
    Size,
    are_relative,
    corners,
    require_boxes,
)
from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import (
    NUMBERS,
    Arrays,
    NumberType,
    as_array,
    as_integer,
    as_text,
    require_type,
    without_padding,
)
from a2cap.data.features.formats.layouts import FeatureLayout, known_layouts, layout_of
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import AmbiguousIdError
from a2cap.data.image_ids import named_id
from a2cap.data.regions import NO_CLASS, Regions, cell_boxes

logger = logging.getLogger(__name__)

_EXAMINED = 20
"""Images whose conventions are examined before any of them is used."""


@dataclass(frozen=True)
class ImageFeatures:
    """An image id and the region features of that image."""

    image_id: str
    regions: Regions


@dataclass(frozen=True)
class ReadHints:
    """Facts that the arrays of files do not state.

    sizes: returns width and height in pixels by image id, for layouts without them, None if they
        are unknown.
    order: of the numbers of a box.
    number_type: of features in base64.
    ids: returns the id of an image by its name, by default that of the file, or the id in files of
        a2.
    """

    sizes: Callable[[str], Size | None] = lambda name: None
    order: BoxOrder = "xyxy"
    number_type: NumberType = "float32"
    ids: Callable[[str], str] | None = None


class Entry(NamedTuple):
    """An image in a container: its name, empty if it is unknown, its arrays, and its position.

    read: returns the arrays, or the regions that a2 has stored.
    """

    name: str
    read: Callable[[], Arrays | Regions]
    position: str = ""


@dataclass(frozen=True)
class Container:
    """The images of a file or folder, in its order.

    count: returns their number, including those that cannot be read; is_own: True if a2 wrote it,
    so that names are ids and nothing has to be checked.
    """

    title: str
    entries: Callable[[], Iterable[Entry]]
    count: Callable[[], int]
    is_own: bool = False

    @classmethod
    def of(cls, title: str, entries: Sequence[Entry], *, is_own: bool = False) -> "Container":
        """Return a container whose images are known."""
        return cls(title, lambda: entries, lambda: len(entries), is_own)


class FeatureSource:
    """The images of containers; a SkippedItem takes the place of one that cannot be read."""

    def __init__(self, containers: Iterable[Container], hints: ReadHints) -> None:
        several = [*containers]
        self._readers = [_Reader(c, hints, is_alone=len(several) == 1) for c in several]

    @property
    def title(self) -> str:
        """What the files were recognised as, with the layout and type of the image read last."""
        titles = [reader.title for reader in self._readers]
        return titles[0] if len(titles) == 1 else f"{len(titles)} files: {', '.join(titles)}"

    def __len__(self) -> int:
        return sum(reader.container.count() for reader in self._readers)

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for reader in self._readers:
            yield from reader.items()


class _Reader:
    """The reader of a container, whose arrays have the names of one layout or of several."""

    def __init__(self, container: Container, hints: ReadHints, *, is_alone: bool) -> None:
        self.container, self._hints = container, hints
        self._prefix = "" if is_alone else f"{container.title}: "
        self._id_of = hints.ids or (str if container.is_own else named_id)
        self._layout: FeatureLayout | None = None
        self._number_type = ""
        self._is_examining = True
        self._is_scaled = False

    @property
    def title(self) -> str:
        layout = f", layout {self._layout.name}, {self._number_type}" if self._layout else ""
        return f"{self.container.title}{layout}"

    def items(self) -> Iterator[ImageFeatures | SkippedItem]:
        self._is_examining, evidence = True, BoxEvidence()
        results = map(self._read, self.container.entries())
        first = list(islice(results, _EXAMINED))
        refused = [(item, error) for item, error in first if isinstance(error, ConventionError)]
        # one image may be damaged; if most are, the file has another convention
        if 2 * len(refused) > len(first):
            raise InputError(
                f"{len(refused)} of the first {len(first)} images of {self.container.title} are "
                f"refused, first {refused[0][0].image_id!r}: {refused[0][1]}"
            )
        self._is_examining = False
        for item, _ in chain(first, results):
            if isinstance(item, ImageFeatures) and not self.container.is_own:
                evidence.add(item.regions.boxes, (item.regions.width, item.regions.height))
            yield item
        if notice := evidence.notice():
            logger.warning("%s: %s", self.container.title, notice)

    def _read(self, entry: Entry) -> tuple[ImageFeatures | SkippedItem, Exception | None]:
        try:
            content = entry.read()
            if isinstance(content, Regions):
                return ImageFeatures(self._id_of(entry.name), content), None
            return self._image(entry.name, content), None
        except (MemoryError, AmbiguousIdError):
            raise  # of this machine, and of all images of the file
        except Exception as error:  # each container's reader raises types of its own
            name = entry.position or entry.name
            with suppress(InputError):
                name = self._id_of(entry.name) if entry.name else name
            # str of a KeyError would add quotes
            reason = str(error.args[0] if isinstance(error, KeyError) else error)
            position = "" if entry.position in ("", name) else f"{entry.position}: "
            return SkippedItem(name, f"{self._prefix}{position}{reason}"), error

    def _image(self, name: str, arrays: Arrays) -> ImageFeatures:
        layout = self._layout
        if layout is None or not layout.matches(arrays):
            layout = self._layout = layout_of(arrays)
        if layout is None:
            names = ", ".join(sorted(arrays)[:12]) or "no arrays"
            raise InputError(
                f"its layout is unknown: it has {names}; known names of features and boxes are "
                f"{known_layouts()}"
            )
        fields = layout.by_field(arrays)
        shape = np.asarray(fields["features"]).shape
        if len(shape) > 2 and shape[0] > 1:
            name = layout.fields["features"]
            raise InputError(f"{name} of shape {shape} are not (R, F) of one image; store it alone")
        image_id = self._id_of(as_text(fields.get("image_id", name)))
        size = _stated_size(fields) or self._hints.sizes(image_id)
        if size is None:
            raise InputError(
                f"size of image {image_id!r} is unknown; name the folder of the images, or a COCO "
                "file that lists it, with --sizes or data.sizes"
            )
        values = self._values(fields, layout)
        features = values["features"].astype(np.float32)
        boxes = self._boxes(values["boxes"], size) if "boxes" in values else _cells(features, size)
        return ImageFeatures(image_id, _regions(boxes, features, values, size))

    def _values(self, fields: Arrays, layout: FeatureLayout) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the regions by field."""
        count = as_integer(fields["count"]) if "count" in fields else None
        number_type = self._hints.number_type
        values = {
            field: as_array(fields[field], layout.fields[field], field, count, number_type)
            for field in NUMBERS
            if field in fields
        }
        if self._is_examining and isinstance(fields["features"], bytes | str):
            require_type(values["features"], number_type)
        self._number_type = values["features"].dtype.name
        return without_padding(values, count, layout.fields.get("count", ""))

    def _boxes(self, stored: NDArray[np.generic], size: Size) -> NDArray[np.float32]:
        """Return boxes as x1 y1 x2 y2 in pixels; raise ConventionError if they cannot be that."""
        order = self._hints.order
        if stored.ndim != 2 or stored.shape[1] not in (4, 6, 7):
            raise InputError(f"boxes of shape {stored.shape} are not (R, 4); create the file again")
        boxes = corners(stored[:, :4].astype(np.float32), order)
        # a third pair, with which UNITER repeats width and height
        sides = (boxes[:, 2:] - boxes[:, :2])[:, : stored.shape[1] - 4]
        if not np.allclose(stored[:, 4:6].astype(np.float32), sides, atol=0.01):
            raise InputError(f"boxes have {stored.shape[1]} numbers; store 4 of them")
        if are_relative(boxes, size):
            if not self._is_scaled:
                notice = "%s: boxes are within 0 to 1: they are multiplied by width and height"
                logger.warning(notice, self.container.title)
            self._is_scaled = True
            boxes = boxes * np.array([*size, *size], np.float32)
        require_boxes(boxes, size, order=order, option="--boxes")
        return boxes


def _stated_size(fields: Arrays) -> Size | None:
    """Return width and height in pixels if a file contains them."""
    if "width" in fields and "height" in fields:
        return as_integer(fields["width"]), as_integer(fields["height"])
    if "size" in fields:
        width, height = np.asarray(fields["size"]).reshape(-1).tolist()
        return int(width), int(height)
    return None


def _cells(features: NDArray[np.float32], size: Size) -> NDArray[np.float32]:
    """Return the boxes of a square grid over the whole image, row by row."""
    side = math.isqrt(len(features))
    if side**2 != len(features):
        raise InputError(f"{len(features)} cells are not a square grid; name a file that has boxes")
    return cell_boxes(side, (0, 0, *size))


def _regions(
    boxes: NDArray[np.float32],
    features: NDArray[np.float32],
    values: dict[str, NDArray[np.generic]],
    size: Size,
) -> Regions:
    """Return regions, with 0 as unknown scores and NO_CLASS as unknown classes."""
    if features.ndim != 2 or boxes.shape != (len(features), 4):
        raise InputError(
            f"boxes of shape {boxes.shape} do not fit features of shape {features.shape}; "
            "create the file again"
        )
    count = len(boxes)
    if "probabilities" in values:
        probabilities = values["probabilities"]
        values |= {"scores": probabilities.max(axis=1), "class_ids": probabilities.argmax(axis=1)}
    attribute_ids, confidence = values.get("attribute_ids"), values.get("attribute_scores")
    if attribute_ids is not None and attribute_ids.min() < 0:  # marks unknown attributes
        attribute_ids = None
    if attribute_ids is None or confidence is None or not confidence.any():  # zeros: unknown
        confidence = None
    return Regions(
        boxes=boxes,
        features=features,
        scores=values.get("scores", np.zeros(count)).astype(np.float32),
        class_ids=values.get("class_ids", np.full(count, NO_CLASS)).astype(np.int32),
        attribute_ids=None if attribute_ids is None else attribute_ids.astype(np.int32),
        attribute_scores=None if confidence is None else confidence.astype(np.float32),
        width=size[0],
        height=size[1],
    )


def damaged(name: str, reason: object) -> InputError:
    """Return the error of a file that cannot be read as what it is."""
    return InputError(f"{name} is damaged: {' '.join(str(reason).split())}; download it again")
