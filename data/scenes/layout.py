"""Random layouts of objects, which are apart, overlap, or contain each other.

Layouts are in images of side 1, so that only the pixels depend on the size of an image.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import dist

import numpy as np
from numpy.typing import NDArray

from a2cap.data.scenes.drawing import footprint
from a2cap.data.scenes.objects import (
    COLOURS,
    MAX_TILT,
    OBJECT_CATEGORIES,
    SIZES,
    TEXTURES,
    SceneObject,
    extent,
)

MAX_OBJECTS = 7
MAX_TRIES, COMPARED_POSITIONS = 60, 4
GAP = 0.025
"""Minimum distance between separate boxes, and from the edge, as a share of the side."""

CONTAINERS = {"ring": 0.012, "box": 0.07}
"""Category of containers -> maximum offset of the content from the centre, per axis."""

MAX_OVERLAP, MAX_OVERLAP_ALIKE = 0.4, 0.12
"""Maximum overlap as a share of the smaller box. Objects that look alike overlap less, so that they
can be counted. The content of a container overlaps it completely."""

_MIN_VISIBLE = 0.65
"""Minimum visible share of a silhouette; 0.6 is guaranteed, and the grid is coarse."""

_CELLS = 128

Corner = Callable[[float, float], tuple[float, float]]
"""A function from width and height of an object to a random left and top."""


def arrange(rng: np.random.Generator) -> tuple[SceneObject, ...]:
    """Arrange 1 to MAX_OBJECTS objects in an image of side 1, the largest first and at the back."""
    arrangement = str(rng.choice(("inside", "row", "crowd", "apart"), p=(0.16, 0.12, 0.36, 0.36)))
    styles = {"inside": _container_styles, "row": _row_styles}.get(arrangement, _random_styles)(rng)
    layout = SceneLayout()
    for style in sorted(styles, key=lambda style: (-SIZES[style.size][0], not style.priority)):
        position = _find_position(style, layout, rng, arrangement=arrangement)
        # An object without a free position is omitted.
        if position is not None:
            layout.add(position)
    return tuple(layout.objects)


@dataclass
class SceneLayout:
    """The placed objects, the first at the back, and the visible part of each."""

    objects: list[SceneObject] = field(default_factory=list)
    _visible: list[NDArray[np.uint8]] = field(default_factory=list)
    _whole: list[int] = field(default_factory=list)

    def add(self, obj: SceneObject) -> None:
        """Place an object in front of all others."""
        mask = footprint(obj, cells=_CELLS)
        self._visible = [*(seen & (1 - mask) for seen in self._visible), mask]
        self.objects.append(obj)
        self._whole.append(int(mask.sum()))

    def is_apart(self, candidate: SceneObject) -> bool:
        """Return True if the box of the candidate is at least GAP from all others."""
        return not any(_overlap(candidate, obj, gap=GAP) for obj in self.objects)

    def keeps_visible(
        self, candidate: SceneObject, *, container: SceneObject | None = None
    ) -> bool:
        """Return True if all others remain visible behind the candidate and boxes overlap little.

        container: an object that may contain the candidate.
        """
        met = [i for i, obj in enumerate(self.objects) if _overlap(candidate, obj, gap=0)]
        for i in met:
            other = self.objects[i]
            smaller = min(candidate.area, other.area)
            limit = MAX_OVERLAP_ALIKE if _same_style(candidate, other) else MAX_OVERLAP
            if other is not container and _intersection(candidate, other) > limit * smaller:
                return False
        if not met:
            return True
        free = 1 - footprint(candidate, cells=_CELLS)
        return all((self._visible[i] & free).sum() >= _MIN_VISIBLE * self._whole[i] for i in met)


@dataclass(frozen=True)
class _Style:
    """An object without a position.

    priority: it is placed before others of its size. relative: it is placed inside the first
    object, or between the first two.
    """

    category: str
    colour: str
    size: str
    texture: str
    priority: bool = False
    relative: bool = False


def _random_styles(rng: np.random.Generator, *, most: int = MAX_OBJECTS) -> list[_Style]:
    """Sample one to four groups of objects that look alike, at most `most` objects in total."""
    styles: list[_Style] = []
    for _ in range(rng.choice(4, p=(0.14, 0.44, 0.31, 0.11)) + 1):
        count = int(rng.choice(7, p=(0.5, 0.26, 0.11, 0.05, 0.035, 0.025, 0.02)) + 1)
        styles += _group(count, styles, rng)
    return styles[:most]


def _container_styles(rng: np.random.Generator) -> list[_Style]:
    """Sample a container, a small object for its inside, and up to two more groups."""
    category = choose(tuple(CONTAINERS), rng)
    container = replace(_group(1, [], rng)[0], category=category, size="large", priority=True)
    # The outline of a small star in a ring of the same colour would be hard to see.
    content = replace(_group(1, [], rng)[0], size="small", priority=True, relative=True)
    if content.category == category or content.colour == container.colour:
        small = [name for name in OBJECT_CATEGORIES if name not in CONTAINERS]
        left = [colour for colour in COLOURS if colour != container.colour]
        content = replace(content, category=choose(small, rng), colour=choose(left, rng))
    styles = [container, content]
    for _ in range(rng.integers(3)):
        styles += _group(int(rng.integers(1, 4)), styles, rng)
    return styles[:MAX_OBJECTS]


def _row_styles(rng: np.random.Generator) -> list[_Style]:
    """Sample a small object for the space between two larger ones, and up to one more group."""
    alike = rng.random() < 0.5
    ends = _group(2 if alike else 1, [], rng)
    ends += [] if alike else _group(1, ends, rng)
    middle = replace(_group(1, ends, rng)[0], size="small", priority=True, relative=True)
    styles = [*(replace(end, size="medium", priority=True) for end in ends), middle]
    if rng.random() < 0.5:
        more = _group(int(rng.integers(1, 4)), styles, rng)
        styles += [replace(style, size="small") for style in more]
    return styles


def _group(count: int, before: Sequence[_Style], rng: np.random.Generator) -> list[_Style]:
    """Sample objects of a new category and colour, usually of the same size."""
    # A category that repeats in another colour makes colour words informative.
    repeats = bool(before) and rng.random() < 0.25
    category = before[0].category if repeats else choose(OBJECT_CATEGORIES, rng)
    occupied = {style.colour for style in before if style.category == category}
    colour = choose([colour for colour in COLOURS if colour not in occupied], rng)
    texture = choose(TEXTURES, rng)
    # Four or more large objects would not fit.
    fitting = tuple(SIZES) if count + len(before) < 4 else ("small", "small", "medium")
    sizes = [choose(fitting, rng) for _ in range(count)]
    if rng.random() < 0.75:
        sizes = sizes[:1] * count
    return [_Style(category, colour, size, texture) for size in sizes]


def _find_position(
    style: _Style, layout: SceneLayout, rng: np.random.Generator, *, arrangement: str
) -> SceneObject | None:
    """Find a position in a container, in front of another object, or apart, None if there is none.

    arrangement: "inside", "row" with objects between the first two, "crowd" with overlaps, or
    "apart".
    """
    objects = layout.objects
    if arrangement == "inside" and style.relative and objects and objects[0].category in CONTAINERS:
        inside = _around(*objects[0].centre, rng, reach=CONTAINERS[objects[0].category])
        for position in positions(style, inside, rng):
            if layout.keeps_visible(position, container=objects[0]):
                return position
    if arrangement == "crowd" and objects and rng.random() < 0.75:
        back = objects[int(rng.integers(len(objects)))]
        for position in positions(style, _beside(back, rng), rng):
            if layout.keeps_visible(position):
                return position
    corner = anywhere(rng)
    if arrangement == "row" and style.relative and len(objects) > 1:
        (x1, y1), (x2, y2) = objects[0].centre, objects[1].centre
        corner = _around((x1 + x2) / 2, (y1 + y2) / 2, rng, reach=0.05)
    free = (position for position in positions(style, corner, rng) if layout.is_apart(position))
    if arrangement == "row" and len(objects) == 1:
        return max(free, key=lambda position: _axis_alignment(position, objects[0]), default=None)
    # Objects that look alike stay together, or too few images would have a left and a right.
    return min(
        islice(free, COMPARED_POSITIONS),
        key=lambda position: _distance_to_group(position, objects),
        default=None,
    )


def positions(
    style: "_Style | SceneObject", corner: Corner, rng: np.random.Generator
) -> Iterator[SceneObject]:
    """Yield the object at random positions in the image, after MAX_TRIES tries in total."""
    tilt = round(float(rng.uniform(-MAX_TILT, MAX_TILT)), 3)
    longer = rng.uniform(*SIZES[style.size])
    width, height = (longer * share for share in extent(style.category, tilt))
    for _ in range(MAX_TRIES):
        x, y = corner(width, height)
        if min(x, y) >= GAP and x + width <= 1 - GAP and y + height <= 1 - GAP:
            box = (round(x, 5), round(y, 5), round(x + width, 5), round(y + height, 5))
            yield SceneObject(style.category, style.colour, style.size, style.texture, box, tilt)


def anywhere(rng: np.random.Generator) -> Corner:
    """Sample positions in the whole image."""
    return lambda width, height: (
        rng.uniform(GAP, 1 - GAP - width),
        rng.uniform(GAP, 1 - GAP - height),
    )


def _beside(back: SceneObject, rng: np.random.Generator) -> Corner:
    """Sample positions at which the box overlaps that of `back`."""
    x1, y1, x2, y2 = back.box
    return lambda width, height: (
        rng.uniform(x1 - 0.9 * width, x2 - 0.1 * width),
        rng.uniform(y1 - 0.9 * height, y2 - 0.1 * height),
    )


def _around(x: float, y: float, rng: np.random.Generator, *, reach: float) -> Corner:
    """Sample positions whose centre is at most `reach` from x y on each axis."""
    return lambda width, height: (
        x - width / 2 + rng.uniform(-reach, reach),
        y - height / 2 + rng.uniform(-reach, reach),
    )


def _distance_to_group(position: SceneObject, objects: Sequence[SceneObject]) -> float:
    """Return the maximum distance from an object that looks alike, 0 without any."""
    alike = [obj for obj in objects if _same_style(position, obj)]
    return max((dist(position.centre, obj.centre) for obj in alike), default=0.0)


def _same_style(a: SceneObject, b: SceneObject) -> bool:
    return (a.category, a.colour) == (b.category, b.colour)


def _axis_alignment(a: SceneObject, b: SceneObject) -> float:
    """Return the difference of the distances of two objects along the axes."""
    (ax, ay), (bx, by) = a.centre, b.centre
    return abs(abs(ax - bx) - abs(ay - by))


def _overlap(a: SceneObject, b: SceneObject, *, gap: float) -> bool:
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return ax1 - gap < bx2 and bx1 - gap < ax2 and ay1 - gap < by2 and by1 - gap < ay2


def _intersection(a: SceneObject, b: SceneObject) -> float:
    """Return the common area of two overlapping boxes."""
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return (min(ax2, bx2) - max(ax1, bx1)) * (min(ay2, by2) - max(ay1, by1))


def choose(words: Sequence[str], rng: np.random.Generator) -> str:
    """Choose one of the words uniformly."""
    return words[int(rng.integers(len(words)))]
