"""Spatial relations and comparisons of objects, which depend only on their boxes, at any scale."""

from collections.abc import Sequence

from a2cap.data.scenes.layout import CONTAINERS
from a2cap.data.scenes.objects import SceneObject

_LEAN = 0.7
"""Maximum offset across the axis as a share of the distance along it (35 degrees)."""

_EXTREME, _LARGER = 1.25, 1.25
"""Minimum ratio of areas for "largest" and of longer sides for "larger": less than the gaps between
SIZES, more than the width of one size."""


def relation(a: Sequence[SceneObject], b: Sequence[SceneObject]) -> str | None:
    """Return the direction of `a` from `b`: left, right, above, below, or None.

    All boxes of `a` are beyond all of `b`, with more distance along the axis than across it.
    """
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _bounding_box(a), _bounding_box(b)
    dx, dy = (ax1 + ax2 - bx1 - bx2) / 2, (ay1 + ay2 - by1 - by2) / 2
    if abs(dy) < _LEAN * abs(dx) and (ax2 < bx1 or bx2 < ax1):
        return "left" if dx < 0 else "right"
    if abs(dx) < _LEAN * abs(dy) and (ay2 < by1 or by2 < ay1):
        return "above" if dy < 0 else "below"
    return None


def is_between(
    a: Sequence[SceneObject], b: Sequence[SceneObject], c: Sequence[SceneObject]
) -> bool:
    """Return True if `b` and `c` are on opposite sides of `a`."""
    sides = {relation(b, a), relation(c, a)}
    return sides in ({"left", "right"}, {"above", "below"})


def is_inside(a: Sequence[SceneObject], b: Sequence[SceneObject]) -> bool:
    """Return True if `b` is one container whose box contains all boxes of `a`."""
    # "inside two rings" would not say which
    if len(b) != 1 or b[0].category not in CONTAINERS:
        return False
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _bounding_box(a), b[0].box
    return bx1 < ax1 and by1 < ay1 and ax2 < bx2 and ay2 < by2


def is_larger(a: Sequence[SceneObject], b: Sequence[SceneObject]) -> bool:
    """Return True if the longer side of each box of `a` is clearly longer than those of `b`."""
    return min(map(_longer_side, a)) > _LARGER * max(map(_longer_side, b))


def extremes(objects: Sequence[SceneObject]) -> tuple[int | None, int | None]:
    """Return the indices of the clearly largest and the clearly smallest box, None without one."""
    if len(objects) < 2:  # nothing to compare with
        return None, None
    order = sorted(range(len(objects)), key=lambda i: objects[i].area)
    areas = [objects[i].area for i in order]
    largest = order[-1] if areas[-1] > _EXTREME * areas[-2] else None
    smallest = order[0] if areas[1] > _EXTREME * areas[0] else None
    return largest, smallest


def _longer_side(obj: SceneObject) -> float:
    x1, y1, x2, y2 = obj.box
    return max(x2 - x1, y2 - y1)


def _bounding_box(objects: Sequence[SceneObject]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = zip(*(obj.box for obj in objects), strict=True)
    return min(x1), min(y1), max(x2), max(y2)
