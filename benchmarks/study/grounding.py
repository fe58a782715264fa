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

from a2cap.data.boxes import box_iou
from a2cap.pipeline.captioning.grounding import MIN_IOU

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


def group_of_words(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return word form -> group, of the groups of `words.json`."""
    return {word: group for group, words in groups.items() for word in words}


def grounded_words(
    caption: Sequence[tuple[str, Sequence[int]]], group_of: Mapping[str, str]
) -> list[GroundedWord | None]:
    """Return the words of one caption of `grounding.json`; None for words without objects."""
    return [
        GroundedWord(text, group_of[text], tuple(objects)) if objects and text in group_of else None
        for text, objects in caption
    ]


def overlapping_regions(regions: Floats, boxes: Floats) -> Bools:
    """Return which regions overlap which box: (R, 4) and (N, 4) x1 y1 x2 y2 -> (R, N)."""
    return box_iou(regions, boxes) >= MIN_IOU


def mass(attention: Floats, right: Bools) -> Floats:
    """Return the share of attention on the right regions: (..., R), (R,) -> (...), NaN for 0."""
    total = attention.sum(axis=-1, dtype=float)
    found = attention[..., right].sum(axis=-1, dtype=float)
    shares: Floats = np.divide(found, total, out=np.full_like(total, np.nan), where=total > 0)
    return shares


class GroundingMeter:
    """Mean grounding over the words of captions, by group and for all groups together."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[float]] = {}

    def add(
        self, words: Iterable[GroundedWord | None], attention: Attention, overlapping: Bools
    ) -> None:
        """Add a caption; overlapping: (R, N), of `overlapping_regions`."""
        for position, word in enumerate(words):
            if word is None:
                continue
            right: Bools = np.logical_or.reduce(overlapping[:, list(word.objects)], axis=1)
            if right.any():
                measured = _measured(attention, position, right)
                for group in (ALL, word.group):
                    self._take(group, measured)

    def _take(self, group: str, measured: Mapping[str, float]) -> None:
        for name, value in measured.items():
            if not np.isnan(value):
                found = self._sums.setdefault((group, name), [0.0, 0.0])
                found[0] += value
                found[1] += 1

    def results(self) -> dict[str, dict[str, float]]:
        """Return group -> measure -> mean; `words` is the number of counted words."""
        found: dict[str, dict[str, float]] = {}
        for (group, name), (total, count) in self._sums.items():
            of_group = found.setdefault(group, {})
            of_group[name] = total / count
            if name == "chance":
                of_group["words"] = count
        return found


def _measured(attention: Attention, position: int, right: Bools) -> dict[str, float]:
    """Return chance, and mass and pointing of each attention, averaged and by layer."""
    found = {"chance": float(right.mean())}
    for name, by_layer in attention.items():
        here = by_layer[:, position]  # -> (layers, R)
        averaged = here.mean(axis=0)
        found[name] = share = float(mass(averaged, right))
        found[f"{name} points"] = np.nan if np.isnan(share) else float(right[averaged.argmax()])
        for number, value in enumerate(mass(here, right), start=1):
            found[f"{name} layer {number}"] = float(value)
    return found
