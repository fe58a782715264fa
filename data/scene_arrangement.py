"""Which things a scene holds, and where they lie: apart from each other and from the edge."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import dist

import numpy as np

from a2.data.scene_things import COLOURS, KINDS, MAX_TILT, SIZES, TEXTURES, Thing, extent

MOST_THINGS = 5
PLACES_TRIED, PLACES_COMPARED = 60, 4
GAP = 0.025
"""Least distance between boxes, and from the edge, as a share of the side."""


def arranged(rng: np.random.Generator, *, side: int) -> tuple[Thing, ...]:
    """One to MOST_THINGS things in a picture of `side` pixels, the largest first."""
    return _placed(_looks(rng), rng, side=side)


@dataclass(frozen=True)
class _Look:
    """A thing before it has a place."""

    kind: str
    colour: str
    size: str
    texture: str


def _looks(rng: np.random.Generator) -> list[_Look]:
    """One to three groups of like things, five things at most in all."""
    looks: list[_Look] = []
    for _ in range(rng.choice(3, p=(0.12, 0.5, 0.38)) + 1):
        count = int(rng.choice((1, 2, 3), p=(0.45, 0.33, 0.22)))
        looks += _group(count, looks, rng)
    return looks[:MOST_THINGS]


def _group(count: int, before: Sequence[_Look], rng: np.random.Generator) -> list[_Look]:
    """Things alike in all but, now and then, their sizes; never a kind and colour seen before."""
    # A kind that repeats in another colour is what makes a colour word worth saying.
    repeats = bool(before) and rng.random() < 0.25
    kind = before[0].kind if repeats else one_of(KINDS, rng)
    taken = {look.colour for look in before if look.kind == kind}
    colour = one_of([colour for colour in COLOURS if colour not in taken], rng)
    texture = one_of(TEXTURES, rng)
    sizes = [one_of(tuple(SIZES), rng) for _ in range(count)]
    if rng.random() < 0.75:
        sizes = sizes[:1] * count
    return [_Look(kind, colour, size, texture) for size in sizes]


def _placed(looks: Sequence[_Look], rng: np.random.Generator, *, side: int) -> tuple[Thing, ...]:
    """The things in places where their boxes do not meet; one that finds no room is left out."""
    things: list[Thing] = []
    for look in sorted(looks, key=lambda look: -SIZES[look.size][0]):
        free = list(islice(_free_places(look, things, rng, side=side), PLACES_COMPARED))
        # Things alike keep together, or too few pictures would have a left and a right.
        if free:
            things.append(min(free, key=lambda place: _strayed(place, things)))
    return tuple(things)


def _free_places(
    look: _Look, things: Sequence[Thing], rng: np.random.Generator, *, side: int
) -> Iterator[Thing]:
    """The look at random places of the picture, each with room for it."""
    tilt = float(rng.uniform(-MAX_TILT, MAX_TILT))
    longer = rng.uniform(*SIZES[look.size]) * side
    width, height = (longer * share for share in extent(look.kind, tilt))
    margin = side * GAP
    for _ in range(PLACES_TRIED):
        x = rng.uniform(margin, side - margin - width)
        y = rng.uniform(margin, side - margin - height)
        box = _rounded(x, y, x + width, y + height)
        place = Thing(look.kind, look.colour, look.size, look.texture, box, tilt)
        if not any(_meet(place, thing, gap=margin) for thing in things):
            yield place


def _rounded(x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float]:
    return round(x1, 2), round(y1, 2), round(x2, 2), round(y2, 2)


def _strayed(place: Thing, things: Sequence[Thing]) -> float:
    """Greatest distance in pixels from a thing of the same kind and colour, 0 without any."""
    alike = [t for t in things if (t.kind, t.colour) == (place.kind, place.colour)]
    return max((dist(place.centre, t.centre) for t in alike), default=0.0)


def _meet(a: Thing, b: Thing, *, gap: float) -> bool:
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = a.box, b.box
    return ax1 - gap < bx2 and bx1 - gap < ax2 and ay1 - gap < by2 and by1 - gap < ay2


def one_of(words: Sequence[str], rng: np.random.Generator) -> str:
    """One of the words, each as likely."""
    return words[int(rng.integers(len(words)))]
