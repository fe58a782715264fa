"""Silhouettes of objects and clutter as contours, from which tight boxes are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Contour = NDArray[np.float64]
"""(N, 2) float64, x y of a closed polygon, y pointing down."""


@dataclass(frozen=True)
class Silhouette:
    """The outline of a category.

    parts: their union is the silhouette; a second contour in a part is a hole.
    details: contours that are filled with a darker shade (a door, an eye).
    """

    parts: tuple[tuple[Contour, ...], ...]
    details: tuple[Contour, ...] = ()

    def transform(self, change: Callable[[Contour], Contour]) -> "Silhouette":
        """Return the silhouette with `change` applied to every contour."""
        return Silhouette(
            parts=tuple(tuple(change(contour) for contour in part) for part in self.parts),
            details=tuple(change(contour) for contour in self.details),
        )

    def bounds(self) -> tuple[Contour, Contour]:
        """Return the minimum and the maximum x y over all parts, each (2,)."""
        points = np.concatenate([contour for part in self.parts for contour in part])
        return points.min(axis=0), points.max(axis=0)


@cache
def silhouette_of(category: str) -> Silhouette:
    """Return the upright silhouette of a category, within -1 to 1 on both axes."""
    return _SILHOUETTES[category]()


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
    angles = np.deg2rad(np.arange(10) * 36 - 90)  # y points down: the first tip is at the top
    radii = np.where(np.arange(10) % 2 == 0, 1.0, 0.45)
    return Silhouette(
        parts=((np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii[:, None],),)
    )


def _ring() -> Silhouette:
    return Silhouette(parts=((_arc(0, 0, radii=(1, 1)), _arc(0, 0, radii=(0.52, 0.52))),))


def _cross() -> Silhouette:
    # two parts: within one, cv2.fillPoly would leave a hole where contours overlap
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
    # The two circles intersect where x² + y² = 1 and (x - 0.45)² + y² = 0.64: at 51.3° and 77.4°.
    outer = _arc(0, 0, radii=(1, 1), degrees=(51.3, 308.7))
    inner = _arc(0.45, 0, radii=(0.8, 0.8), degrees=(282.6, 77.4))
    return Silhouette(parts=((np.concatenate([outer, inner]),),))


def _leaf() -> Silhouette:
    t = np.linspace(0, np.pi, 25)
    half = np.stack([-0.75 * np.cos(t), 0.42 * np.sin(t)], axis=1)
    blade = np.concatenate([half, half[::-1] * (1, -1)]) - (0.25, 0)
    blade[:, 1] *= 1 - 0.5 * np.clip(blade[:, 0] + 0.2, 0, 0.7)
    stalk, rib = _rectangle(0.4, -0.05, 1, 0.05), _rectangle(-0.85, -0.03, 0.45, 0.03)
    return Silhouette(parts=((stalk,), (blade,)), details=(rib,))


def _cloud() -> Silhouette:
    puffs = ((-0.58, 0.2, 0.38), (-0.18, -0.12, 0.46), (0.3, -0.02, 0.4), (0.66, 0.24, 0.32))
    floor = _rectangle(-0.6, 0.1, 0.66, 0.56)
    return Silhouette(parts=((floor,), *((_arc(x, y, radii=(r, r)),) for x, y, r in puffs)))


def _puddle() -> Silhouette:
    angles = np.deg2rad(np.linspace(0, 360, 73)[:-1])
    radii = 1 + 0.13 * np.sin(3 * angles) + 0.08 * np.sin(5 * angles + 1)
    rim = np.stack([np.cos(angles), 0.42 * np.sin(angles)], axis=1) * radii[:, None]
    glint = _arc(-0.3, -0.08, radii=(0.3, 0.07))
    return Silhouette(parts=((rim / 1.2,),), details=(glint,))


def _stone() -> Silhouette:
    lump = _polygon((-1, 0.55), (-0.8, -0.1), (-0.25, -0.6), (0.4, -0.5), (0.9, 0.05), (1, 0.55))
    crack = _polygon((-0.25, -0.6), (-0.05, 0.1), (0.3, 0.25), (0, 0.2), (-0.3, -0.45))
    return Silhouette(parts=((lump,),), details=(crack,))


def _bush() -> Silhouette:
    angles = np.deg2rad(np.linspace(180, 360, 73))
    radii = 1 + 0.1 * np.sin(14 * angles)
    crown = np.stack([np.cos(angles), 0.95 * np.sin(angles)], axis=1) * radii[:, None]
    berries = tuple(
        _arc(x, y, radii=(0.07, 0.07)) for x, y in ((-0.5, -0.3), (0.1, -0.6), (0.45, -0.2))
    )
    return Silhouette(parts=((crown / 1.1,),), details=berries)


def _sign() -> Silhouette:
    post = _rectangle(-0.08, -0.2, 0.08, 1)
    board = _polygon((-0.75, -0.85), (0.45, -0.85), (0.8, -0.5), (0.45, -0.15), (-0.75, -0.15))
    lines = _rectangle(-0.55, -0.66, 0.35, -0.58), _rectangle(-0.55, -0.42, 0.2, -0.34)
    return Silhouette(parts=((post,), (board,)), details=lines)


def _mushroom() -> Silhouette:
    stem = _polygon((-0.2, 0), (0.2, 0), (0.3, 0.9), (-0.3, 0.9))
    cap = _arc(0, 0.1, radii=(0.9, 0.9), degrees=(180, 360))
    gills = _rectangle(-0.9, 0.02, 0.9, 0.1)
    return Silhouette(parts=((stem,), (cap,)), details=(gills,))


def _fence() -> Silhouette:
    pales = tuple(
        (_polygon((x - 0.13, 0.7), (x - 0.13, -0.4), (x, -0.7), (x + 0.13, -0.4), (x + 0.13, 0.7)),)
        for x in (-0.78, -0.26, 0.26, 0.78)
    )
    rails = (_rectangle(-1, -0.2, 1, 0), _rectangle(-1, 0.3, 1, 0.5))
    return Silhouette(parts=((rails[0],), (rails[1],), *pales))


_SILHOUETTES = {
    build.__name__.removeprefix("_"): build
    for build in (
        *(_ball, _box, _star, _ring, _cross, _cup),
        *(_house, _tree, _fish, _kite, _heart, _moon),
        *(_leaf, _cloud, _puddle, _stone),
        *(_bush, _sign, _mushroom, _fence),
    )
}
