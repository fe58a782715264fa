"""How the things of a scene lie to each other: decided by their boxes alone, at any scale."""

from collections.abc import Sequence

from a2cap.data.scenes.layout import CONTAINERS
from a2cap.data.scenes.objects import Thing

_LEAN = 0.7
"""Greatest offset across a relation's axis, as a share of the distance along it (35 degrees)."""

_OUTSTANDING, _LARGER = 1.25, 1.25
"""How many times another's area makes a thing the largest of all, and how many times its longer
side makes it larger than that one: less than the gaps between SIZES, more than these are wide."""


def relation(a: Sequence[Thing], b: Sequence[Thing]) -> str | None:
    """Where the things `a` lie as seen from `b`: left, right, above, below, or None.

    All of one side's boxes lie beyond all of the other's, and more along that axis than across it.
    """
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _around(a), _around(b)
    dx, dy = (ax1 + ax2 - bx1 - bx2) / 2, (ay1 + ay2 - by1 - by2) / 2
    if abs(dy) < _LEAN * abs(dx) and (ax2 < bx1 or bx2 < ax1):
        return "left" if dx < 0 else "right"
    if abs(dx) < _LEAN * abs(dy) and (ay2 < by1 or by2 < ay1):
        return "above" if dy < 0 else "below"
    return None


def is_between(a: Sequence[Thing], b: Sequence[Thing], c: Sequence[Thing]) -> bool:
    """Whether `b` and `c` lie on opposite sides of `a`."""
    sides = {relation(b, a), relation(c, a)}
    return sides in ({"left", "right"}, {"above", "below"})


def is_inside(a: Sequence[Thing], b: Sequence[Thing]) -> bool:
    """Whether `b` is one container, and its box holds the boxes of all `a`."""
    if len(b) != 1 or b[0].kind not in CONTAINERS:
        return False
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = _around(a), b[0].box
    return bx1 < ax1 and by1 < ay1 and ax2 < bx2 and ay2 < by2


def is_larger(a: Sequence[Thing], b: Sequence[Thing]) -> bool:
    """Whether the longer side of each box of `a` is clearly longer than that of each of `b`."""
    return min(map(_longer_side, a)) > _LARGER * max(map(_longer_side, b))


def outstanding(things: Sequence[Thing]) -> tuple[int | None, int | None]:
    """Indices of the thing whose box is clearly larger than all others', and of the smallest.

    None where no thing is so, as where there is but one.
    """
    if len(things) < 2:
        return None, None
    order = sorted(range(len(things)), key=lambda i: things[i].area)
    areas = [things[i].area for i in order]
    largest = order[-1] if areas[-1] > _OUTSTANDING * areas[-2] else None
    smallest = order[0] if areas[1] > _OUTSTANDING * areas[0] else None
    return largest, smallest


def _longer_side(thing: Thing) -> float:
    x1, y1, x2, y2 = thing.box
    return max(x2 - x1, y2 - y1)


def _around(things: Sequence[Thing]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = zip(*(thing.box for thing in things), strict=True)
    return min(x1), min(y1), max(x2), max(y2)
