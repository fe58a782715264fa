"""The things of generated scenes: which kinds there are, their silhouettes, colours and sizes.

A silhouette is pure geometry, so that a thing's tight box is known before anything is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Contour = NDArray[np.float64]
"""(N, 2) float64, x y of a closed polygon, y pointing down."""

PLURALS = {
    "ball": "balls",
    "box": "boxes",
    "star": "stars",
    "ring": "rings",
    "cross": "crosses",
    "cup": "cups",
    "house": "houses",
    "tree": "trees",
    "fish": "fish",
    "kite": "kites",
    "heart": "hearts",
    "moon": "moons",
}
KINDS = tuple(PLURALS)

# Pink and brown are left out: their words blur into tints of red and shades of orange.
COLOURS = {
    "red": (214, 40, 44),
    "orange": (245, 134, 24),
    "yellow": (252, 214, 40),
    "green": (38, 156, 74),
    "blue": (36, 98, 216),
    "purple": (126, 58, 176),
    "white": (250, 250, 248),
    "black": (40, 40, 44),
}
"""Colour word to red, green, blue in 0-255."""

SIZES = {"small": (0.15, 0.18), "medium": (0.23, 0.27), "large": (0.34, 0.39)}
"""Bounds of a thing's longer side as a share of the picture's; the gaps keep the words apart."""

TEXTURES = ("plain", "striped", "dotted")

MAX_TILT = 9.0
"""Degrees that a thing may lean; a cross stays a cross and a house stands."""


@dataclass(frozen=True)
class Thing:
    """One thing of a scene, complete for drawing and for describing.

    kind, colour, size, texture: words out of KINDS, COLOURS, SIZES and TEXTURES.
    box: x1 y1 x2 y2 in pixels, tight around the silhouette (its shadow is not part of it).
    tilt: degrees, clockwise as one sees it.
    """

    kind: str
    colour: str
    size: str
    texture: str
    box: tuple[float, float, float, float]
    tilt: float = 0.0

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box, x y in pixels."""
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2

    @property
    def area(self) -> float:
        """Area of the box in square pixels."""
        x1, y1, x2, y2 = self.box
        return (x2 - x1) * (y2 - y1)


@dataclass(frozen=True)
class Silhouette:
    """Outline of a kind in its own units.

    parts: their union is the silhouette; within a part a second contour cuts a hole.
    details: contours inside it that are filled with a darker shade (a door, an eye).
    """

    parts: tuple[tuple[Contour, ...], ...]
    details: tuple[Contour, ...] = ()

    def mapped(self, change: Callable[[Contour], Contour]) -> "Silhouette":
        """The same silhouette with every contour put through `change`."""
        return Silhouette(
            parts=tuple(tuple(change(contour) for contour in part) for part in self.parts),
            details=tuple(change(contour) for contour in self.details),
        )

    def bounds(self) -> tuple[Contour, Contour]:
        """Least and greatest x y over all parts, each (2,)."""
        points = np.concatenate([contour for part in self.parts for contour in part])
        return points.min(axis=0), points.max(axis=0)


def extent(kind: str, tilt: float) -> tuple[float, float]:
    """Width and height of the leaning silhouette's box, the longer one 1."""
    least, greatest = _leaning(kind, tilt).bounds()
    width, height = (greatest - least) / (greatest - least).max()
    return float(width), float(height)


def outline(thing: Thing) -> Silhouette:
    """The thing's silhouette in pixels of its picture, filling `thing.box` exactly."""
    silhouette = _leaning(thing.kind, thing.tilt)
    least, greatest = silhouette.bounds()
    corner, far_corner = np.array(thing.box[:2]), np.array(thing.box[2:])
    scale = (far_corner - corner) / (greatest - least)
    return silhouette.mapped(lambda contour: corner + (contour - least) * scale)


def _leaning(kind: str, tilt: float) -> Silhouette:
    angle = np.deg2rad(tilt)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return silhouette_of(kind).mapped(lambda contour: contour @ turn)


@cache
def silhouette_of(kind: str) -> Silhouette:
    """The upright silhouette of a kind, within -1 to 1 on both axes."""
    return _SILHOUETTES[kind]()


def _polygon(*points: tuple[float, float]) -> Contour:
    return np.array(points, dtype=np.float64)


def _rectangle(x1: float, y1: float, x2: float, y2: float) -> Contour:
    return _polygon((x1, y1), (x2, y1), (x2, y2), (x1, y2))


def _arc(
    x: float, y: float, *, radii: tuple[float, float], degrees: tuple[float, float] = (0, 360)
) -> Contour:
    angles = np.deg2rad(np.linspace(*degrees, 49))
    return np.stack([x + radii[0] * np.cos(angles), y + radii[1] * np.sin(angles)], axis=1)


def _ball() -> Silhouette:
    return Silhouette(parts=((_arc(0, 0, radii=(1, 1)),),))


def _box() -> Silhouette:
    lid, tape = _rectangle(-1, -0.56, 1, -0.46), _rectangle(-0.16, -1, 0.16, -0.16)
    return Silhouette(parts=((_rectangle(-1, -1, 1, 1),),), details=(lid, tape))


def _star() -> Silhouette:
    angles = np.deg2rad(np.arange(10) * 36 - 90)
    radii = np.where(np.arange(10) % 2 == 0, 1.0, 0.45)
    return Silhouette(
        parts=((np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None],),)
    )


def _ring() -> Silhouette:
    return Silhouette(parts=((_arc(0, 0, radii=(1, 1)), _arc(0, 0, radii=(0.52, 0.52))),))


def _cross() -> Silhouette:
    upright, beam = _rectangle(-0.33, -1, 0.33, 1), _rectangle(-1, -0.33, 1, 0.33)
    return Silhouette(parts=((upright,), (beam,)))


def _cup() -> Silhouette:
    body = _polygon((-0.85, -0.75), (0.45, -0.75), (0.3, 0.8), (-0.7, 0.8))
    handle = (_arc(0.42, -0.05, radii=(0.5, 0.5)), _arc(0.42, -0.05, radii=(0.27, 0.27)))
    return Silhouette(parts=(handle, (body,)), details=(_rectangle(-0.85, -0.62, 0.45, -0.5),))


def _house() -> Silhouette:
    walls = _rectangle(-0.78, -0.15, 0.78, 0.9)
    roof = _polygon((-1, -0.1), (0, -0.95), (1, -0.1))
    chimney = _rectangle(0.42, -0.9, 0.68, -0.2)
    door, window = _rectangle(-0.5, 0.25, -0.08, 0.9), _rectangle(0.18, 0.15, 0.55, 0.5)
    return Silhouette(parts=((chimney,), (walls,), (roof,)), details=(door, window))


def _tree() -> Silhouette:
    trunk = _rectangle(-0.15, 0.4, 0.15, 1)
    tiers = ((-1.0, -0.35, 0.42), (-0.62, 0.1, 0.6), (-0.2, 0.6, 0.78))
    crown = tuple((_polygon((0, top), (half, low), (-half, low)),) for top, low, half in tiers)
    return Silhouette(parts=((trunk,), *crown), details=(_rectangle(-0.15, 0.6, 0.15, 1),))


def _fish() -> Silhouette:
    body = _arc(-0.25, 0, radii=(0.75, 0.48))
    tail = _polygon((0.25, 0), (1, -0.5), (0.8, 0), (1, 0.5))
    fin = _polygon((-0.55, -0.3), (0.1, -0.75), (0.2, -0.2))
    eye = _arc(-0.66, -0.1, radii=(0.1, 0.1))
    return Silhouette(parts=((tail,), (fin,), (body,)), details=(eye,))


def _kite() -> Silhouette:
    sail = _polygon((0, -1), (0.62, -0.35), (0, 0.5), (-0.62, -0.35))
    tail = _polygon((-0.04, 0.45), (0.04, 0.45), (0.04, 1), (-0.04, 1))
    bows = tuple(
        (_polygon((-0.22, y - 0.1), (0.22, y + 0.1), (0.22, y - 0.1), (-0.22, y + 0.1)),)
        for y in (0.68, 0.9)
    )
    spars = (_rectangle(-0.03, -1, 0.03, 0.5), _rectangle(-0.62, -0.38, 0.62, -0.32))
    return Silhouette(parts=((tail,), *bows, (sail,)), details=spars)


def _heart() -> Silhouette:
    t = np.linspace(0, 2 * np.pi, 65)[:-1]
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return Silhouette(parts=((np.stack([x, y], axis=1) / 17,),))


def _moon() -> Silhouette:
    # The two circles meet where x² + y² = 1 and (x - 0.45)² + y² = 0.64: at 51.3° and 77.4°.
    outer = _arc(0, 0, radii=(1, 1), degrees=(51.3, 308.7))
    inner = _arc(0.45, 0, radii=(0.8, 0.8), degrees=(282.6, 77.4))
    return Silhouette(parts=((np.concatenate([outer, inner]),),))


_SILHOUETTES: dict[str, Callable[[], Silhouette]] = {
    "ball": _ball,
    "box": _box,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    "cup": _cup,
    "house": _house,
    "tree": _tree,
    "fish": _fish,
    "kite": _kite,
    "heart": _heart,
    "moon": _moon,
}
