"""n-gram counts of captions and their references as arrays, for BLEU and CIDEr.

Sentences are split at white space, as in pycocoevalcap's BLEU and CIDEr. Orders n are 1 to 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2cap.model.self_critical.ngrams import END_OF_CAPTION, END_OF_REFERENCE, MAX_N, NgramCounts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CELLS = 1 << 22
"""Pairs of positions that are compared at once."""


@dataclass(frozen=True)
class PairCounts:
    """n-grams of B of N captions, and of at most G references of each.

    rows: (B,) captions.
    tokens, references: (L, B, 1) and (M, B, G), numbers of words, negative after the end.
    lengths, reference_lengths: (B, 1) and (B, G) in words, -1 for no reference.
    """

    rows: Ints
    tokens: Ints
    references: Ints
    lengths: Ints
    reference_lengths: Ints
    counts: NgramCounts[NDArray[Any]]


@dataclass(frozen=True)
class Pairs:
    """N captions with their references, in parts; words: by number."""

    parts: list[PairCounts]
    words: list[str]
    captions: int


def count_pairs(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Pairs:
    """Count the n-grams of one candidate per image and of the image's references."""
    number: dict[str, int] = {}
    split = [sentence.split() for sentence in chain(candidates, *references)]
    words = [number.setdefault(word, len(number)) for sentence in split for word in sentence]
    numbers = np.array([*words, -1], dtype=np.int64)  # an index without a sentence reads the last
    lengths = np.array([*map(len, split), -1])  # of no sentence, whose number is -1
    starts = np.cumsum(lengths) - lengths
    groups = np.array([len(group) for group in references], dtype=np.int64)
    offsets = np.arange(groups.max(initial=0))
    sentences = (len(candidates) + np.cumsum(groups) - groups)[:, None] + offsets
    sentences = np.where(offsets < groups[:, None], sentences, -1)

    def padded(columns: Ints, end: int) -> Ints:
        longest = max(MAX_N, int(lengths[columns].max()))
        positions = np.arange(longest).reshape(-1, 1, 1)
        index = np.minimum(starts[columns] + positions, len(words))
        return np.where(positions < lengths[columns], numbers[index], end).astype(np.int32)

    def part(rows: Ints) -> PairCounts:
        columns, references_of = rows[:, None], sentences[rows]
        tokens, targets = padded(columns, END_OF_CAPTION), padded(references_of, END_OF_REFERENCE)
        counts = NgramCounts.of(np, tokens, targets)
        return PairCounts(rows, tokens, targets, lengths[columns], lengths[references_of], counts)

    # captions of similar length together, so that little is padding
    longest = np.maximum(lengths[: len(groups)], lengths[sentences].max(axis=1, initial=MAX_N))
    order, parts = np.argsort(-longest, kind="stable"), []
    while len(order):
        size = max(1, int(_CELLS // (longest[order[0]] ** 2 * max(1, len(offsets)))))
        parts.append(part(order[:size]))
        order = order[size:]
    return Pairs(parts, list(number), len(candidates))
