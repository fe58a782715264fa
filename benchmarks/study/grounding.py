"""Grounding accuracy of attention on generated scenes, whose word-object pairs are known.

Attention correctness (Liu et al., AAAI 2017, arXiv:1605.09553) over regions, as in
`a2cap.pipeline.captioning.grounding`, but with the objects of each word in `grounding.json` instead
of names of categories, so that "left", "two" and "red" count like "ball". For each content word of
a true caption: the share of attention on regions that overlap (IoU >= 0.5) a box of the word, and
whether the most attended region is one of them. Words count if at least one region overlaps such a
box. Chance is uniform attention.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALL = "all"
"""The group of all content words."""

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class GroundedWord:
    """A word of a true caption, its group of words, and the indices of its objects."""

    text: str
    group: str
    objects: tuple[int, ...]


Attention = Mapping[str, Floats]
"""Attention over an image's regions at each word of a caption, averaged over heads.

Name of the attention -> (layers, L, R), 0 or more; rows need not sum to 1."""


def grounded_words(
    caption: Sequence[tuple[str, Sequence[int]]], group_of: Mapping[str, str]
) -> list[GroundedWord | None]:
    """Return the words of one caption of `grounding.json`; None for words without objects."""
    return [
        GroundedWord(text, group_of[text], tuple(objects)) if objects and text in group_of else None
        for text, objects in caption
    ]


def mass(attention: Floats, right: Bools) -> Floats:
    """Return the share of attention on the right regions: (..., R), (R,) -> (...), NaN for 0."""
    total = attention.sum(axis=-1, dtype=float)
    right_mass = attention[..., right].sum(axis=-1, dtype=float)
    shares: Floats = np.divide(right_mass, total, out=np.full_like(total, np.nan), where=total > 0)
    return shares


class GroundingMeter:
    """Mean grounding over the words of captions, by group and for all groups together."""

    def __init__(self) -> None:
        self._measures: dict[str, dict[str, list[float]]] = {}

    def add(
        self, words: Iterable[GroundedWord | None], attention: Attention, overlapping: Bools
    ) -> None:
        """Add a caption; overlapping: (R, N), True where a region overlaps a box."""
        for position, word in enumerate(words):
            objects = list(word.objects if word else ())
            right: Bools = np.logical_or.reduce(overlapping[:, objects], axis=1)
            if word is None or not right.any():
                continue
            for name, value in _measured(attention, position, right).items():
                for group in (ALL, word.group):
                    if not np.isnan(value):
                        self._measures.setdefault(group, {}).setdefault(name, []).append(value)

    def results(self) -> dict[str, dict[str, float]]:
        """Return group -> measure -> mean; `words` is the number of counted words."""
        return {
            group: {name: sum(values) / len(values) for name, values in measures.items()}
            | {"words": len(measures["chance"])}
            for group, measures in self._measures.items()
        }


def _measured(attention: Attention, position: int, right: Bools) -> dict[str, float]:
    """Return chance, and mass and pointing of each attention, averaged and by layer."""
    measures = {"chance": float(right.mean())}
    for name, by_layer in attention.items():
        here = by_layer[:, position]  # -> (layers, R)
        averaged = here.mean(axis=0)
        measures[name] = share = float(mass(averaged, right))
        measures[f"{name} points"] = np.nan if np.isnan(share) else float(right[averaged.argmax()])
        for number, value in enumerate(mass(here, right), start=1):
            measures[f"{name} layer {number}"] = float(value)
    return measures
