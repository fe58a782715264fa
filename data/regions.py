"""Regions of one image, as extractors make them and feature stores keep them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_CLASS = -1
"""Class of a region that no detector has classified."""


@dataclass(frozen=True)
class Regions:
    """R regions of one image, in the extractor's order.

    boxes: (R, 4) float32, x1 y1 x2 y2 in pixels of the original image.
    features: (R, F) float32 or float16.
    scores: (R,) float32 in [0, 1], the detector's confidence.
    class_ids: (R,) int32.
    attribute_ids: (R,) int32, or None if the detector has no attributes.
    attribute_scores: (R,) float32 in [0, 1], their confidence, or None where it is not known.
    width, height: size of the original image in pixels.
    relations: (E, 3) int32, the rows of a subject and of an object and the label of their relation,
        from 1 on; None where none were predicted.
    """

    boxes: NDArray[np.float32]
    features: NDArray[np.floating]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    attribute_ids: NDArray[np.int32] | None
    width: int
    height: int
    attribute_scores: NDArray[np.float32] | None = None
    relations: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)


def top_scoring(regions: Regions, most: int | None) -> Regions:
    """Return the `most` top-scoring regions in their original order; the first of equals wins."""
    if most is None or len(regions) <= most:
        return regions
    # back in the original order, which attention files and captions of a store rely on
    kept = np.sort(np.argsort(-regions.scores, kind="stable")[:most])
    arrays: dict[str, Any] = {
        name: value[kept]
        for name, value in vars(regions).items()
        if isinstance(value, np.ndarray) and name != "relations"
    }
    if regions.relations is not None:
        pairs = regions.relations[:, :2]
        both = np.isin(pairs, kept).all(axis=1)
        rows = np.searchsorted(kept, pairs[both])
        arrays["relations"] = np.c_[rows, regions.relations[both, 2]].astype(np.int32)
    return replace(regions, **arrays)


def cell_boxes(
    cells: int | tuple[int, int], area: tuple[float, float, float, float]
) -> NDArray[np.float32]:
    """Divide an area x1 y1 x2 y2 evenly: boxes (rows * columns, 4) float32, row by row.

    cells: rows and columns, or their number where both are equal.
    """
    rows, columns = (cells, cells) if isinstance(cells, int) else cells
    x, y = np.linspace(area[0], area[2], columns + 1), np.linspace(area[1], area[3], rows + 1)
    left, top = np.meshgrid(x[:-1], y[:-1])
    right, bottom = np.meshgrid(x[1:], y[1:])
    return np.stack([left, top, right, bottom], axis=-1).reshape(-1, 4).astype(np.float32)


def grid_shape(regions: Regions) -> tuple[int, int] | None:
    """Return rows and columns if the boxes are the cells of an area, row by row, both above 1."""
    boxes = regions.boxes
    if len(boxes) < 4:
        return None
    # the first row ends where the left edge goes back
    columns = int(np.argmax(np.diff(boxes[:, 0]) <= 0)) + 1
    rows = len(boxes) // columns
    if min(rows, columns) < 2 or rows * columns != len(boxes):
        return None
    x1, y1, x2, y2 = (*boxes[0, :2], *boxes[-1, 2:])
    expected = cell_boxes((rows, columns), (x1, y1, x2, y2))
    is_even = np.allclose(boxes, expected, atol=0.1)
    return (rows, columns) if is_even and x2 - x1 > columns and y2 - y1 > rows else None


def is_grid(regions: Regions) -> bool:
    """Return True if the boxes are the cells of an area, as `grid_shape` finds."""
    return grid_shape(regions) is not None
