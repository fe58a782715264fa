"""Whether a captioner looks at what a word is about, where `grounding.json` says what that is.

Attention correctness (Liu et al., AAAI 2017, arXiv:1605.09553) over regions, as in
`a2cap.pipeline.captioning.grounding`, but by the known things of each word instead of names of
categories, so
that "left", "two" and "red" count as well as "ball". At each content word of a true caption: the
share of the attention's mass on regions that overlap (IoU >= 0.5) a box that the word is about, and
whether the region of most attention is one of them. Words count where at least one region overlaps
such a box. Chance is what attention spread evenly over the regions has.
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
    """A word of a true caption, its group of words, and the indices of its things."""

    text: str
    group: str
    things: tuple[int, ...]


@dataclass(frozen=True)
class Looks:
    """What was paid to an image's regions at each word of a caption, averaged over heads.

    by_layer: name of the attention -> (layers, L, R), 0 or more; rows need no sum of 1.
    """

    by_layer: Mapping[str, Floats]


def group_of_words(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Word form -> its group, of `words.json`."""
    return {word: group for group, words in groups.items() for word in words}


def grounded_words(
    caption: Sequence[tuple[str, Sequence[int]]], group_of: Mapping[str, str]
) -> list[GroundedWord | None]:
    """The words of one caption of `grounding.json`; None for those that are about no thing."""
    return [
        GroundedWord(text, group_of[text], tuple(things)) if things and text in group_of else None
        for text, things in caption
    ]


def right_regions(regions: Floats, boxes: Floats) -> Bools:
    """(R, 4) and (N, 4) x1 y1 x2 y2 -> (R, N): which regions overlap which box enough."""
    return box_iou(regions, boxes) >= MIN_IOU


def mass(attention: Floats, right: Bools) -> Floats:
    """Share of the attention on the right regions; (..., R) and (R,) -> (...), NaN without any."""
    total = attention.sum(axis=-1, dtype=float)
    found = attention[..., right].sum(axis=-1, dtype=float)
    shares: Floats = np.divide(found, total, out=np.full_like(total, np.nan), where=total > 0)
    return shares


class GroundingMeter:
    """Sums the grounding of captions; means over words, by group and for all groups together."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[float]] = {}

    def add(self, words: Iterable[GroundedWord | None], looks: Looks, overlapping: Bools) -> None:
        """Takes in a caption; overlapping: (R, N), of `right_regions`."""
        for place, word in enumerate(words):
            if word is None:
                continue
            right: Bools = np.logical_or.reduce(overlapping[:, list(word.things)], axis=1)
            if right.any():
                measured = _measured(looks, place, right)
                for group in (ALL, word.group):
                    self._take(group, measured)

    def _take(self, group: str, measured: Mapping[str, float]) -> None:
        for name, value in measured.items():
            if not np.isnan(value):
                found = self._sums.setdefault((group, name), [0.0, 0.0])
                found[0] += value
                found[1] += 1

    def results(self) -> dict[str, dict[str, float]]:
        """Group -> what was measured -> its mean; `words` is how many words counted."""
        found: dict[str, dict[str, float]] = {}
        for (group, name), (total, count) in self._sums.items():
            of_group = found.setdefault(group, {})
            of_group[name] = total / count
            if name == "chance":
                of_group["words"] = count
        return found


def _measured(looks: Looks, place: int, right: Bools) -> dict[str, float]:
    """At one word: chance, and of each attention its mass and pointing, over and by layers."""
    found = {"chance": float(right.mean())}
    for name, by_layer in looks.by_layer.items():
        here = by_layer[:, place]  # -> (layers, R)
        averaged = here.mean(axis=0)
        found[name] = share = float(mass(averaged, right))
        found[f"{name} points"] = np.nan if np.isnan(share) else float(right[averaged.argmax()])
        for number, value in enumerate(mass(here, right), start=1):
            found[f"{name} layer {number}"] = float(value)
    return found
