"""The reader of every layout: arrays by name become regions, checked as boxes and features."""

import logging
import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from a2cap.data.box_check import (
    ConventionError,
    Size,
    SwappedAxes,
    are_relative,
    corners,
    require_boxes,
)
from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import (
    as_array,
    as_integer,
    as_text,
    encoded_bytes,
    without_padding,
)
from a2cap.data.features.formats.feature_format import (
    Arrays,
    Container,
    Entry,
    ImageFeatures,
    Reading,
    image_size,
    skipped_item,
)
from a2cap.data.features.formats.layouts import Layout, known_layouts, layout_of
from a2cap.data.features.formats.number_types import require_type
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import AmbiguousIdError
from a2cap.data.regions import NO_CLASS, Regions, cell_boxes

logger = logging.getLogger(__name__)

_EXAMINED = 20
"""Images whose conventions are examined before any of them is used."""
_LISTED = 12
_PER_REGION = (
    *("features", "boxes", "probabilities"),
    *("scores", "class_ids", "attribute_ids", "attribute_scores"),
)


class LayoutSource:
    """The images of a container, in the layout that the names of its arrays determine."""

    def __init__(self, container: Container, reading: Reading) -> None:
        self._container, self._reading = container, reading
        self._layout: Layout | None = None
        self._number_type = ""
        self._is_examining = True
        self._noticed: set[str] = set()

    @property
    def title(self) -> str:
        """The container, and layout and type of the image read last."""
        layout = f", layout {self._layout.name}, {self._number_type}" if self._layout else ""
        return f"{self._container.title}{layout}"

    def __len__(self) -> int:
        return len(self._container)

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        self._is_examining, axes = True, SwappedAxes()
        results = map(self._read, self._container)
        first = list(islice(results, _EXAMINED))
        refused = [(item, error) for item, error in first if isinstance(error, ConventionError)]
        # one image may be damaged; if most are, the file has another convention
        if 2 * len(refused) > len(first):
            raise InputError(
                f"{len(refused)} of the first {len(first)} images of {self._container.title} are "
                f"refused, first {refused[0][0].image_id!r}: {refused[0][1]}"
            )
        self._is_examining = False
        for results_so_far in (first, results):
            for item, _ in results_so_far:
                if isinstance(item, ImageFeatures):
                    regions = item.regions
                    axes.add(regions.boxes, (regions.width, regions.height))
                yield item
        if notice := axes.notice():
            logger.warning("%s: %s", self._container.title, notice)

    def _read(self, entry: Entry) -> tuple[ImageFeatures, None] | tuple[SkippedItem, Exception]:
        try:
            return self._image(entry), None
        except Exception as error:  # each container's reader raises types of its own
            item = skipped_item(self._name(entry), error)
            if entry.position not in ("", item.image_id):
                item = SkippedItem(item.image_id, f"{entry.position}: {item.reason}")
            return item, error

    def _name(self, entry: Entry) -> str:
        """Return the id of an image that cannot be read, or else its position or name."""
        try:
            return self._reading.image_id(entry.name) if entry.name else entry.position
        except AmbiguousIdError:
            raise
        except InputError:
            return entry.position or entry.name

    def _layout_of(self, arrays: Arrays) -> Layout:
        if self._layout is None or not self._layout.matches(arrays):
            self._layout = layout_of(arrays)
        if self._layout is None:
            names = ", ".join(sorted(map(str, arrays))[:_LISTED]) or "no arrays"
            raise InputError(
                f"its layout is unknown: it has {names}; known names of features and boxes are "
                f"{known_layouts()}"
            )
        return self._layout

    def _image(self, entry: Entry) -> ImageFeatures:
        arrays = entry.read()
        layout = self._layout_of(arrays)
        image_id = self._reading.image_id(as_text(arrays.get(layout.image_id, entry.name)))
        size = _stated_size(arrays, layout) or image_size(image_id, self._reading.sizes)
        values = self._values(arrays, layout)
        self._number_type = values["features"].dtype.name
        features = values["features"].astype(np.float32)
        boxes = self._boxes(values["boxes"], size) if layout.boxes else _cells(features, size)
        return ImageFeatures(image_id, _regions(boxes, features, values, size))

    def _values(self, arrays: Arrays, layout: Layout) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the regions by field."""
        count = as_integer(arrays[layout.count]) if layout.count in arrays else None
        values = {}
        for field in _PER_REGION:
            name = getattr(layout, field)
            if name in arrays:
                value, number_type = arrays[name], self._reading.number_type
                values[field] = as_array(value, name, field, count, number_type)
                if field == "features" and self._is_examining and isinstance(value, bytes | str):
                    require_type(encoded_bytes(value), count or 1, number_type)
        return without_padding(values, count, layout.count)

    def _boxes(self, stored: NDArray[np.generic], size: Size) -> NDArray[np.float32]:
        """Return boxes as x1 y1 x2 y2 in pixels; raise ConventionError if they cannot be that."""
        order = self._reading.order
        if stored.ndim != 2 or stored.shape[1] not in (4, 6, 7):
            raise InputError(f"boxes of shape {stored.shape} are not (R, 4); create the file again")
        boxes = corners(stored[:, :4].astype(np.float32), order)
        # a third pair, with which UNITER repeats width and height
        sides = (boxes[:, 2:] - boxes[:, :2])[:, : stored.shape[1] - 4]
        if not np.allclose(stored[:, 4:6].astype(np.float32), sides, atol=0.01):
            raise InputError(f"boxes have {stored.shape[1]} numbers; store 4 of them")
        if are_relative(boxes, size):
            self._notice("boxes are within 0 to 1: they are multiplied by width and height")
            boxes = boxes * np.array([*size, *size], np.float32)
        require_boxes(boxes, size, order=order, option="--boxes")
        return boxes

    def _notice(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            logger.warning("%s: %s", self._container.title, text)


def _stated_size(arrays: Arrays, layout: Layout) -> Size | None:
    """Return width and height in pixels if the arrays contain them."""
    if layout.width in arrays and layout.height in arrays:
        return as_integer(arrays[layout.width]), as_integer(arrays[layout.height])
    if layout.size in arrays:
        width, height = np.asarray(arrays[layout.size]).reshape(-1).tolist()
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
    attribute_ids = values.get("attribute_ids")
    if attribute_ids is not None and attribute_ids.min() < 0:  # marks unknown attributes
        attribute_ids = None
    confidence = values.get("attribute_scores")
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
