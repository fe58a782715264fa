"""The one check of boxes from outside: that they are corners in pixels of their image.

Importers of region features, `data.instances` and `a2 caption --boxes` call it. Its thresholds and
their reasons are in docs/guide/features.md.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError

BoxOrder = Literal["xyxy", "xywh", "cxcywh", "yxyx"]
"""Meaning of the four numbers of a box: corners, corner and sides, centre and sides, or corners
with y first."""
ORDERS: tuple[BoxOrder, ...] = get_args(BoxOrder)

ROUNDING = 1.0
"""Pixels by which a box may leave the image or end before it begins: caffe's boxes end at the last
pixel, others after it, and some are rounded."""
_RELATIVE = 1.001
"""Largest coordinate of boxes in shares of the image, which rounding may exceed."""
_EXAMINED, _FEWEST_PROBLEMS = 1000, 3
"""Images whose boxes show the convention of a COCO file; fewer bad ones are skipped one by one."""
_FEWEST, _DEVIATIONS = 10, 2
"""Square images, and standard errors of their mean, from which swapped axes are no accident."""
_WORDS = {"xyxy": "x1 y1 x2 y2", "xywh": "x y w h", "cxcywh": "cx cy w h", "yxyx": "y1 x1 y2 x2"}

Size = tuple[int, int]


class ConventionError(InputError):
    """Raised for values that are whole, but of another convention than the one they are read in."""


def corners(boxes: NDArray[np.float32], order: BoxOrder) -> NDArray[np.float32]:
    """Return boxes (R, 4) of an order as x1 y1 x2 y2."""
    if order == "yxyx":
        return boxes[:, [1, 0, 3, 2]]
    if order == "xyxy":
        return boxes
    start, sides = boxes[:, :2], boxes[:, 2:]
    if order == "cxcywh":
        start = start - sides / np.float32(2)
    return np.concatenate([start, start + sides], axis=1)


def are_relative(boxes: NDArray[np.float32], size: Size) -> bool:
    """Return True if corners are shares of an image of this size, not pixels."""
    # of an image of 2 pixels, pixels are such numbers too
    is_share = len(boxes) > 0 and bool((boxes >= -_RELATIVE + 1).all())
    return is_share and bool((boxes <= _RELATIVE).all()) and min(size) > 2


def require_boxes(
    boxes: NDArray[np.float32], size: Size, *, order: BoxOrder = "xyxy", option: str = ""
) -> None:
    """Raise ConventionError unless x1 y1 x2 y2 boxes are ordered and inside an image.

    boxes: (R, 4).
    size: width and height in pixels.
    order: in which the file has them.
    option: the one that names another order, empty if there is none.
    """
    if not len(boxes):
        return
    if are_relative(boxes, size):
        raise ConventionError(
            f"all boxes are within 0 to 1 in an image of {size[0]} x {size[1]} pixels: "
            f"{_shown(boxes, order, 0)}; multiply them by its width and height"
        )
    ends_early = _ends_early(boxes)
    if ends_early.any():
        index = int(ends_early.argmax())
        raise ConventionError(
            f"box {index} ends before it begins: {_shown(boxes, order, index)} read as "
            f"{_WORDS[order]}; {_advice(boxes, size, order, option)}"
        )
    outside = _outside(boxes, size)
    if outside.any():
        index = int(outside.argmax())
        raise ConventionError(
            f"box {index} is outside the image of {size[0]} x {size[1]} pixels: "
            f"{_shown(boxes, order, index)}; {_advice(boxes, size, order, option)}"
        )


def require_convention(images: Iterable[tuple[str, NDArray[np.float32], Size]], path: Path) -> None:
    """Raise ConventionError if the boxes of most images of a COCO file cannot be theirs.

    images: ids, x1 y1 x2 y2 boxes, and sizes.
    """
    sample = list(islice((image for image in images if len(image[1])), _EXAMINED))
    problems = {}
    for name, boxes, size in sample:
        try:
            require_boxes(boxes, size, order="xywh")
        except ConventionError as error:
            problems[name] = str(error)
    if len(problems) >= _FEWEST_PROBLEMS and 2 * len(problems) > len(sample):
        first = next(iter(problems))
        raise ConventionError(
            f"boxes of {len(problems):,} of {len(sample):,} images of {str(path)!r} are not as in "
            f"COCO, first {first!r}: {problems[first]}"
        )


def _ends_early(boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
    early: NDArray[np.bool_] = np.any(boxes[:, 2:] < boxes[:, :2] - ROUNDING, axis=1)
    return early


def _outside(boxes: NDArray[np.float32], size: Size) -> NDArray[np.bool_]:
    limits = np.array([*size, *size], np.float32) + ROUNDING
    outside: NDArray[np.bool_] = ~np.all((boxes >= -ROUNDING) & (boxes <= limits), axis=1)
    return outside


def _advice(boxes: NDArray[np.float32], size: Size, order: BoxOrder, option: str) -> str:
    """Propose the orders in which all boxes of the image would be boxes."""
    stored = _as_stored(boxes, order)
    fitting: list[BoxOrder] = []
    for other in ORDERS:
        read = corners(stored, other)
        if other != order and not (_ends_early(read) | _outside(read, size)).any():
            fitting.append(other)
    if not fitting:
        return "check the sizes of the images"
    names = " or ".join(_WORDS[other] for other in fitting)
    sizes = ", or the size height before width" if "yxyx" in fitting else ""
    remedy = f"write {_WORDS[order]}"
    if option:
        remedy = f"name the order with {' or '.join(f'{option} {other}' for other in fitting)}"
    return f"are the boxes {names}{sizes}? {remedy[0].upper()}{remedy[1:]}"


def _as_stored(boxes: NDArray[np.float32], order: BoxOrder) -> NDArray[np.float32]:
    """Return x1 y1 x2 y2 boxes in the order of their file."""
    if order in ("xyxy", "yxyx"):
        return corners(boxes, order)  # its own inverse
    sides = boxes[:, 2:] - boxes[:, :2]
    start = boxes[:, :2] + sides / 2 if order == "cxcywh" else boxes[:, :2]
    return np.concatenate([start, sides], axis=1)


def _shown(boxes: NDArray[np.float32], order: BoxOrder, index: int) -> list[float]:
    shown: list[float] = _as_stored(boxes, order)[index].astype(float).round(3).tolist()
    return shown


class SwappedAxes:
    """Evidence that boxes of square images have y before x, which no frame can show.

    Objects of photographs lie below the middle and, as photographs can be mirrored, as often left
    as right of it: in the 10 images of caffe's features at 0.48 of the width, 0.53 of the height.
    """

    def __init__(self) -> None:
        self._offsets: list[float] = []
        self._has_frames = False

    def add(self, boxes: NDArray[np.float32], size: Size) -> None:
        """Add the boxes of an image."""
        if self._has_frames or size[0] != size[1]:
            self._has_frames = True  # swapped boxes would leave some of these images
            return
        x, y = (boxes[:, :2] + boxes[:, 2:]).mean(axis=0) / 2
        self._offsets.append(float(x - y) / size[0])

    def notice(self) -> str | None:
        """Return what to check if the boxes fit better with x and y exchanged."""
        if self._has_frames or len(self._offsets) < _FEWEST:
            return None
        offsets = np.array(self._offsets)
        if offsets.mean() <= _DEVIATIONS * offsets.std(ddof=1) / np.sqrt(len(offsets)):
            return None
        return (
            "all images are square, and the objects of photographs would be right of the middle "
            "in place of below it; if the boxes are y1 x1 y2 x2, convert with --boxes yxyx"
        )
