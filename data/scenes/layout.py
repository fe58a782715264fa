"""Which things a scene holds, and where they lie: apart, partly behind each other, or inside.

All is in an image of side 1, so that nothing but pixels depends on an image's side.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import dist

import numpy as np
from numpy.typing import NDArray

from a2cap.data.scenes.drawing import footprint
from a2cap.data.scenes.objects import COLOURS, KINDS, MAX_TILT, SIZES, TEXTURES, Thing, extent

MOST_THINGS = 7
PLACES_TRIED, PLACES_COMPARED = 60, 4
GAP = 0.025
"""Least distance between boxes that do not meet, and from the edge, as a share of the side."""

CONTAINERS = {"ring": 0.012, "box": 0.07}
"""Kind in which something may lie to how far from its middle that is, as a share of the side."""

MOST_SHARED, MOST_SHARED_ALIKE = 0.4, 0.12
"""Greatest share of the smaller of two boxes that lies in the other, and of two things that look
alike, or they could not be counted; inside a container is all."""

_LEAST_SEEN = 0.65
"""Least share of a silhouette that stays visible; 0.6 is promised, and pixels are coarse."""

_CELLS = 128

Corner = Callable[[float, float], tuple[float, float]]
"""Width and height of a thing to the left and top of one random place for it."""


def arranged(rng: np.random.Generator) -> tuple[Thing, ...]:
    """One to MOST_THINGS things in an image of side 1, the largest first and at the back."""
    way = str(rng.choice(("inside", "row", "crowd", "apart"), p=(0.16, 0.12, 0.36, 0.36)))
    looks = {"inside": _contained_looks, "row": _looks_in_a_row}.get(way, _looks)(rng)
    layout = Layout()
    for look in sorted(looks, key=lambda look: (-SIZES[look.size][0], not look.leads)):
        place = _place(look, layout, rng, way=way)
        # One that finds no room is left out.
        if place is not None:
            layout.add(place)
    return tuple(layout.things)


@dataclass
class Layout:
    """What has its place already, the first at the back, and what is still seen of each."""

    things: list[Thing] = field(default_factory=list)
    _seen: list[NDArray[np.uint8]] = field(default_factory=list)
    _whole: list[int] = field(default_factory=list)

    def add(self, thing: Thing) -> None:
        """Puts the thing before all others."""
        mask = footprint(thing, cells=_CELLS)
        self._seen = [*(seen & (1 - mask) for seen in self._seen), mask]
        self.things.append(thing)
        self._whole.append(int(mask.sum()))

    def is_apart(self, place: Thing) -> bool:
        """Whether the place's box keeps its distance from all others."""
        return not any(_meet(place, thing, gap=GAP) for thing in self.things)

    def leaves_seen(self, place: Thing, *, container: Thing | None = None) -> bool:
        """Whether all others stay visible behind a thing in that place, and their boxes distinct.

        container: a thing in which the place may lie.
        """
        met = [i for i, thing in enumerate(self.things) if _meet(place, thing, gap=0)]
        for i in met:
            other = self.things[i]
            smaller = min(place.area, other.area)
            most = MOST_SHARED_ALIKE if _alike(place, other) else MOST_SHARED
            if other is not container and _shared(place, other) > most * smaller:
                return False
        if not met:
            return True
        free = 1 - footprint(place, cells=_CELLS)
        return all((self._seen[i] & free).sum() >= _LEAST_SEEN * self._whole[i] for i in met)


@dataclass(frozen=True)
class _Look:
    """A thing before it has a place.

    leads: it takes its place before others of its size. follows: that place is inside the first
    thing, or between the first two.
    """

    kind: str
    colour: str
    size: str
    texture: str
    leads: bool = False
    follows: bool = False


def _looks(rng: np.random.Generator, *, most: int = MOST_THINGS) -> list[_Look]:
    """One to four groups of like things, so many things at most in all."""
    looks: list[_Look] = []
    for _ in range(rng.choice(4, p=(0.14, 0.44, 0.31, 0.11)) + 1):
        count = int(rng.choice(7, p=(0.5, 0.26, 0.11, 0.05, 0.035, 0.025, 0.02)) + 1)
        looks += _group(count, looks, rng)
    return looks[:most]


def _contained_looks(rng: np.random.Generator) -> list[_Look]:
    """A container and a small thing for its inside, and up to two more groups."""
    kind = one_of(tuple(CONTAINERS), rng)
    container = replace(_group(1, [], rng)[0], kind=kind, size="large", leads=True)
    # The outline of a small star in a ring of its own colour would be hard to see.
    content = replace(_group(1, [], rng)[0], size="small", leads=True, follows=True)
    if content.kind == kind or content.colour == container.colour:
        others = [one for one in KINDS if one not in CONTAINERS]
        left = [colour for colour in COLOURS if colour != container.colour]
        content = replace(content, kind=one_of(others, rng), colour=one_of(left, rng))
    looks = [container, content]
    for _ in range(rng.integers(3)):
        looks += _group(int(rng.integers(1, 4)), looks, rng)
    return looks[:MOST_THINGS]


def _looks_in_a_row(rng: np.random.Generator) -> list[_Look]:
    """A small thing for between two that are larger, and up to one more group."""
    alike = rng.random() < 0.5
    ends = _group(2 if alike else 1, [], rng)
    ends += [] if alike else _group(1, ends, rng)
    middle = replace(_group(1, ends, rng)[0], size="small", leads=True, follows=True)
    looks = [*(replace(end, size="medium", leads=True) for end in ends), middle]
    if rng.random() < 0.5:
        more = _group(int(rng.integers(1, 4)), looks, rng)
        looks += [replace(look, size="small") for look in more]
    return looks


def _group(count: int, before: Sequence[_Look], rng: np.random.Generator) -> list[_Look]:
    """Things alike in all but, now and then, their sizes; never a kind and colour seen before."""
    # A kind that repeats in another colour is what makes a colour word worth saying.
    repeats = bool(before) and rng.random() < 0.25
    kind = before[0].kind if repeats else one_of(KINDS, rng)
    taken = {look.colour for look in before if look.kind == kind}
    colour = one_of([colour for colour in COLOURS if colour not in taken], rng)
    texture = one_of(TEXTURES, rng)
    # Four large ones or more would find no room.
    fitting = tuple(SIZES) if count + len(before) < 4 else ("small", "small", "medium")
    sizes = [one_of(fitting, rng) for _ in range(count)]
    if rng.random() < 0.75:
        sizes = sizes[:1] * count
    return [_Look(kind, colour, size, texture) for size in sizes]


def _place(look: _Look, layout: Layout, rng: np.random.Generator, *, way: str) -> Thing | None:
    """A place for the look, if there is one: in its container, before another thing, or apart.

    way: "crowd" where some lie before others, "row" where some lie between the first two.
    """
    things = layout.things
    if way == "inside" and look.follows and things and things[0].kind in CONTAINERS:
        inside = within(things[0], rng, reach=CONTAINERS[things[0].kind])
        for place in places(look, inside, rng):
            if layout.leaves_seen(place, container=things[0]):
                return place
    if way == "crowd" and things and rng.random() < 0.75:
        back = things[int(rng.integers(len(things)))]
        for place in places(look, beside(back, rng), rng):
            if layout.leaves_seen(place):
                return place
    corner = anywhere(rng)
    if way == "row" and look.follows and len(things) > 1:
        corner = midway(things[0], things[1], rng)
    free = (place for place in places(look, corner, rng) if layout.is_apart(place))
    if way == "row" and len(things) == 1:
        return max(free, key=lambda place: _level(place, things[0]), default=None)
    # Things alike keep together, or too few images would have a left and a right.
    return min(
        islice(free, PLACES_COMPARED),
        key=lambda place: _strayed(place, things),
        default=None,
    )


def places(look: "_Look | Thing", corner: Corner, rng: np.random.Generator) -> Iterator[Thing]:
    """The look at random places that lie in the image, PLACES_TRIED times at most."""
    tilt = round(float(rng.uniform(-MAX_TILT, MAX_TILT)), 3)
    longer = rng.uniform(*SIZES[look.size])
    width, height = (longer * share for share in extent(look.kind, tilt))
    for _ in range(PLACES_TRIED):
        x, y = corner(width, height)
        if min(x, y) >= GAP and x + width <= 1 - GAP and y + height <= 1 - GAP:
            box = (round(x, 5), round(y, 5), round(x + width, 5), round(y + height, 5))
            yield Thing(look.kind, look.colour, look.size, look.texture, box, tilt)


def anywhere(rng: np.random.Generator) -> Corner:
    """Anywhere in the image."""
    return lambda width, height: (
        rng.uniform(GAP, 1 - GAP - width),
        rng.uniform(GAP, 1 - GAP - height),
    )


def beside(back: Thing, rng: np.random.Generator) -> Corner:
    """Where the box meets that of the thing `back`."""
    x1, y1, x2, y2 = back.box
    return lambda width, height: (
        rng.uniform(x1 - 0.9 * width, x2 - 0.1 * width),
        rng.uniform(y1 - 0.9 * height, y2 - 0.1 * height),
    )


def within(container: Thing, rng: np.random.Generator, *, reach: float) -> Corner:
    """In the middle of the container, or at most `reach` from it on either axis."""
    x, y = container.centre
    return lambda width, height: (
        x - width / 2 + rng.uniform(-reach, reach),
        y - height / 2 + rng.uniform(-reach, reach),
    )


def midway(first: Thing, second: Thing, rng: np.random.Generator) -> Corner:
    """About the middle between two things."""
    (x1, y1), (x2, y2) = first.centre, second.centre
    return lambda width, height: (
        (x1 + x2 - width) / 2 + rng.uniform(-0.05, 0.05),
        (y1 + y2 - height) / 2 + rng.uniform(-0.05, 0.05),
    )


def _strayed(place: Thing, things: Sequence[Thing]) -> float:
    """Greatest distance from a thing of the same kind and colour, 0 without any."""
    alike = [thing for thing in things if _alike(place, thing)]
    return max((dist(place.centre, thing.centre) for thing in alike), default=0.0)


def _alike(a: Thing, b: Thing) -> bool:
    return (a.kind, a.colour) == (b.kind, b.colour)


def _level(a: Thing, b: Thing) -> float:
    """How much farther apart two things are along one axis than along the other."""
    (ax, ay), (bx, by) = a.centre, b.centre
    return abs(abs(ax - bx) - abs(ay - by))


def _meet(a: Thing, b: Thing, *, gap: float) -> bool:
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return ax1 - gap < bx2 and bx1 - gap < ax2 and ay1 - gap < by2 and by1 - gap < ay2


def _shared(a: Thing, b: Thing) -> float:
    """Area in which two boxes that meet do so."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return (min(ax2, bx2) - max(ax1, bx1)) * (min(ay2, by2) - max(ay1, by1))


def one_of(words: Sequence[str], rng: np.random.Generator) -> str:
    """One of the words, each as likely."""
    return words[int(rng.integers(len(words)))]
