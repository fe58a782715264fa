"""Clutter, which captions never mention, and its planted correlation with objects.

By default, clutter appears independently of the objects. A planted companion appears only in images
with its object, so that a captioner may learn to attend to the companion instead of the object.
This reproduces "deviated focus" (Hu et al., "Attention-Aligned Transformer for Image Captioning",
AAAI 2022, section 1).
"""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from a2cap.data.scenes.drawing import footprint
from a2cap.data.scenes.layout import anywhere, choose, positions
from a2cap.data.scenes.objects import CLUTTER, SceneObject

COMPANIONS = {"fish": "puddle", "kite": "cloud", "house": "fence", "cup": "mushroom"}
"""Category of objects -> category of clutter that can be planted beside it."""

CLUTTER_PROBABILITY = 0.18
"""Probability of each category of clutter in a scene without planted companions."""

_MIN_VISIBLE, _CELLS = 0.75, 96


def place_clutter(
    objects: Sequence[SceneObject], rng: np.random.Generator, *, planted: float = 0.0
) -> tuple[SceneObject, ...]:
    """Place mostly visible clutter behind the objects of an image of side 1.

    planted: probability of a companion in an image with its object; above 0 it appears in no other.
    """
    present = {obj.category for obj in objects}
    # one draw per category, so that planting does not change the others
    categories = [
        category
        for category in CLUTTER
        if rng.random() < _chance(category, present, planted=planted)
    ]
    occupied = np.zeros((_CELLS, _CELLS), np.uint8)
    for obj in objects:
        occupied |= footprint(obj, cells=_CELLS)
    pieces: list[SceneObject] = []
    # Companions first, or scenes with many objects would have fewer of them.
    for category in sorted(categories, key=lambda category: category not in COMPANIONS.values()):
        piece = _piece(category, occupied, rng)
        if piece is not None:
            pieces.append(piece)
            occupied |= footprint(piece, cells=_CELLS)
    # Each was placed behind the previous ones.
    return tuple(reversed(pieces))


def _chance(category: str, present: Set[str], *, planted: float) -> float:
    partner = {companion: partner for partner, companion in COMPANIONS.items()}.get(category)
    # without planting, companions are ordinary clutter
    if not planted or partner is None:
        return CLUTTER_PROBABILITY
    return planted if partner in present else 0.0


def _piece(
    category: str, occupied: NDArray[np.uint8], rng: np.random.Generator
) -> SceneObject | None:
    """Place a piece where it is mostly visible, None if there is no such position."""
    size = "small" if rng.random() < 0.6 else "medium"
    style = SceneObject(category, choose(CLUTTER[category], rng), size, "plain", (0, 0, 1, 1))
    for position in positions(style, anywhere(rng), rng):
        mask = footprint(position, cells=_CELLS)
        if (mask & (1 - occupied)).sum() >= _MIN_VISIBLE * mask.sum():
            return position
    return None
