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
_FEWEST, _DEVIATIONS, _SMALLEST = 10, 1.5, 0.001
"""Square images, standard errors of their mean, and its smallest value, from which swapped axes are
no accident."""
_REACH = 0.8
"""Share of the image, in both directions, that some box of ten images exceeds."""
_WORDS = {"xyxy": "x1 y1 x2 y2", "xywh": "x y w h", "cxcywh": "cx cy w h", "yxyx": "y1 x1 y2 x2"}
_CORNERS: dict[str, list[list[float]]] = {
    "xywh": [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]],
    "cxcywh": [[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]],
    "yxyx": [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]],
}
"""What each number of an order adds to x1 y1 x2 y2."""

Size = tuple[int, int]
"""Width and height in pixels."""


class ConventionError(InputError):
    """Raised for values that are whole, but of another convention than the one they are read in."""


def corners(
    boxes: NDArray[np.float32], order: BoxOrder, *, inverse: bool = False
) -> NDArray[np.float32]:
    """Return boxes (R, 4) of an order as x1 y1 x2 y2; the inverse returns them in that order."""
    if order == "xyxy":
        return boxes
    matrix = np.array(_CORNERS[order], np.float32)
    if inverse:
        matrix = np.linalg.inv(matrix).astype(np.float32)
    with np.errstate(invalid="ignore"):  # of infinite numbers, which fit no image
        return boxes @ matrix


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
    early, outside = _misfits(boxes, size)
    misfits = early if early.any() else outside
    is_relative = are_relative(boxes, size)
    if not misfits.any() and not is_relative:
        return
    index = 0 if is_relative else int(misfits.argmax())
    stored = corners(boxes, order, inverse=True)
    shown = stored[index].astype(float).round(3).tolist()
    image = f"image of {size[0]} x {size[1]} pixels: {shown}"
    if is_relative:
        remedy = "multiply them by its width and height"
        raise ConventionError(f"all boxes are within 0 to 1 in an {image}; {remedy}")
    if early.any():
        problem = f"ends before it begins: {shown} read as {_WORDS[order]}"
    else:
        problem = f"is outside the {image}"
    raise ConventionError(f"box {index} {problem}; {_advice(stored, size, order, option)}")


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


def _misfits(boxes: NDArray[np.float32], size: Size) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which boxes end before they begin, and which are not inside an image."""
    limits = np.array([*size, *size], np.float32) + ROUNDING
    early = np.any(boxes[:, 2:] < boxes[:, :2] - ROUNDING, axis=1)
    return early, ~np.all((boxes >= -ROUNDING) & (boxes <= limits), axis=1)


def _advice(stored: NDArray[np.float32], size: Size, order: BoxOrder, option: str) -> str:
    """Propose the orders in which all boxes of the image would be boxes."""
    fitting = [
        other
        for other in ORDERS
        if other != order and not np.any(_misfits(corners(stored, other), size))
    ]
    if not fitting:
        return "check the sizes of the images"
    names = " or ".join(_WORDS[other] for other in fitting)
    sizes = ", or the size height before width" if "yxyx" in fitting else ""
    options = " or ".join(f"{option} {other}" for other in fitting)
    remedy = f"Name the order with {options}" if option else f"Write {_WORDS[order]}"
    return f"are the boxes {names}{sizes}? {remedy}"


class BoxEvidence:
    """Evidence of all images about what a single one cannot show.

    In square images, that boxes have y before x: large objects of photographs are below the middle
    and, as photographs can be mirrored, as often left as right of it: in the 10 images of caffe's
    features at 0.49 of the width, 0.53 of the height. And that boxes are pixels of smaller images.
    """

    def __init__(self) -> None:
        self._offsets: list[float] = []
        self._has_frames = False
        self._count, self._reach = 0, 0.0

    def add(self, boxes: NDArray[np.float32], size: Size) -> None:
        """Add the boxes of an image, of which the larger half counts for its axes."""
        if not len(boxes):
            return
        self._count += 1
        self._reach = max(self._reach, float((boxes[:, 2:] / size).max()))
        # swapped boxes would leave some of the images that are not square
        self._has_frames = self._has_frames or size[0] != size[1]
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        large = boxes[areas >= 0.99 * np.median(areas)]  # of a grid, all cells
        x, y = (large[:, :2] + large[:, 2:]).mean(axis=0) / 2
        self._offsets += [] if self._has_frames else [float(x - y) / size[0]]

    def notice(self) -> str | None:
        """Return what to check, None if the boxes fit their images."""
        if self._count < _FEWEST:
            return None
        if self._reach < _REACH:
            return (
                f"no box reaches beyond {self._reach:.0%} of its image: are they pixels of scaled "
                "images? Check the sizes of the images, and look at boxes with --look"
            )
        offsets = np.array(self._offsets)
        if self._has_frames or offsets.mean() <= _SMALLEST:
            return None
        if offsets.mean() <= _DEVIATIONS * offsets.std(ddof=1) / np.sqrt(len(offsets)):
            return None
        return (
            "all images are square, and the objects of photographs would be right of the middle "
            "in place of below it; if the boxes are y1 x1 y2 x2, convert with --boxes yxyx"
        )
