"""What stands around in a scene and is never spoken of, and how it can be planted.

Every kind of clutter appears by chance of its own, whatever things there are. With planted
companions that changes: a companion then stands where its kind of thing does and nowhere else, so
that a captioner may learn to look at the companion, where the word is about the thing. That is the
situation of "deviated focus" (Hu et al., "Attention-Aligned Transformer for Image Captioning",
AAAI 2022, section 1).
"""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from a2cap.data.scenes.drawing import footprint
from a2cap.data.scenes.layout import anywhere, one_of, places
from a2cap.data.scenes.objects import CLUTTER, Thing

COMPANIONS = {"fish": "puddle", "kite": "cloud", "house": "fence", "cup": "mushroom"}
"""Kind of thing to the kind of clutter that can be planted beside it."""

CHANCE = 0.18
"""Of each kind of clutter to appear in a scene, where nothing is planted."""

_LEAST_SEEN, _CELLS = 0.75, 96


def cluttered(
    things: Sequence[Thing], rng: np.random.Generator, *, planted: float = 0.0
) -> tuple[Thing, ...]:
    """Clutter that lies behind these things, in an image of side 1, and is seen for the most part.

    planted: probability that a companion stands where its kind of thing does; above 0 it stands
    nowhere else.
    """
    shown = {thing.kind for thing in things}
    kinds = [kind for kind in CLUTTER if rng.random() < _chance(kind, shown, planted=planted)]
    taken = np.zeros((_CELLS, _CELLS), np.uint8)
    for thing in things:
        taken |= footprint(thing, cells=_CELLS)
    pieces: list[Thing] = []
    # Companions choose first, or scenes with many things would have fewer of them.
    for kind in sorted(kinds, key=lambda kind: kind not in COMPANIONS.values()):
        piece = _piece(kind, taken, rng)
        if piece is not None:
            pieces.append(piece)
            taken |= footprint(piece, cells=_CELLS)
    # Each was given a place behind those before it.
    return tuple(reversed(pieces))


def _chance(kind: str, shown: Set[str], *, planted: float) -> float:
    friend = {companion: thing for thing, companion in COMPANIONS.items()}.get(kind)
    if not planted or friend is None:
        return CHANCE
    return planted if friend in shown else 0.0


def _piece(kind: str, taken: NDArray[np.uint8], rng: np.random.Generator) -> Thing | None:
    """The clutter in a place of which little is taken; None where there is none."""
    size = "small" if rng.random() < 0.6 else "medium"
    look = Thing(kind, one_of(CLUTTER[kind], rng), size, "plain", (0, 0, 1, 1))
    for place in places(look, anywhere(rng), rng):
        mask = footprint(place, cells=_CELLS)
        if (mask & (1 - taken)).sum() >= _LEAST_SEEN * mask.sum():
            return place
    return None
