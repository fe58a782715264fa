"""n-gram counts of captions as arrays, for BLEU, CIDEr and caption statistics.

Sentences are split at white space, as in pycocoevalcap's BLEU and CIDEr. Orders n are 1 to 4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2cap.model.self_critical.ngrams import END_OF_CAPTION, END_OF_REFERENCE, MAX_N
from a2cap.model.self_critical.ngrams import NgramCounts as DenseCounts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_CELLS = 1 << 22
"""Pairs of positions that are compared at once."""


@dataclass(frozen=True)
class NgramCounts:
    """Sparse counts of the n-grams of one order in each sentence.

    sentence, gram, count: (E,) int64, sorted by sentence, then gram; grams are in [0, `grams`).
    keys: (G,) ascending, the shorter n-gram without the last word, times the number of words, plus
    the last word.
    """

    sentence: Ints
    gram: Ints
    count: Ints
    keys: Ints

    @property
    def grams(self) -> int:
        """Return G, the number of n-grams."""
        return len(self.keys)

    def slice(self, start: int, stop: int) -> "NgramCounts":
        """Return the entries of sentences `start` to `stop`, renumbered from 0."""
        first, last = np.searchsorted(self.sentence, [start, stop])
        rows = slice(first, last)
        return NgramCounts(
            self.sentence[rows] - start, self.gram[rows], self.count[rows], self.keys
        )


@dataclass(frozen=True)
class PairCounts:
    """n-grams of B of N captions, and of at most G references of each.

    rows: (B,) captions. tokens: (L, B, 1) and references: (M, B, G), numbers of words, negative
    after the end. lengths: (B, 1) and reference_lengths: (B, G) in words, -1 for no reference.
    """

    rows: Ints
    tokens: Ints
    references: Ints
    lengths: Ints
    reference_lengths: Ints
    counts: DenseCounts[NDArray[Any]]


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

    def padded(chosen: Ints, end: int) -> Ints:
        longest = max(MAX_N, int(lengths[chosen].max()))
        positions = np.arange(longest).reshape(-1, 1, 1)
        index = np.minimum(starts[chosen] + positions, len(words))
        return np.where(positions < lengths[chosen], numbers[index], end).astype(np.int32)

    def part(rows: Ints) -> PairCounts:
        own, others = rows[:, None], sentences[rows]
        tokens, targets = padded(own, END_OF_CAPTION), padded(others, END_OF_REFERENCE)
        counts = DenseCounts.of(np, tokens, targets)
        return PairCounts(rows, tokens, targets, lengths[own], lengths[others], counts)

    # captions of similar length together, so that little is padding
    longest = np.maximum(lengths[: len(groups)], lengths[sentences].max(axis=1, initial=MAX_N))
    order, parts = np.argsort(-longest, kind="stable"), []
    while len(order):
        size = max(1, int(_CELLS // (longest[order[0]] ** 2 * max(1, len(offsets)))))
        parts.append(part(order[:size]))
        order = order[size:]
    return Pairs(parts, list(number), len(candidates))


def distinct_words(sentences: Iterable[str]) -> list[str]:
    """Return the words by the number that `count_ngrams` gives them."""
    return list(dict.fromkeys(word for sentence in sentences for word in sentence.split()))


def count_ngrams(sentences: Sequence[str]) -> list[NgramCounts]:
    """Count the n-grams of each sentence, for n = 1, 2, 3, 4."""
    split = [sentence.split() for sentence in sentences]
    number = {word: rank for rank, word in enumerate(distinct_words(sentences))}
    word = np.array([number[word] for sentence in split for word in sentence], dtype=np.int64)
    lengths = [len(sentence) for sentence in split]
    sentence = np.repeat(np.arange(len(split)), lengths)
    left = np.cumsum(lengths)[sentence] - np.arange(len(word))  # words to the end of the sentence
    gram, keys, counted = word, np.arange(len(number)), []
    for order in range(1, MAX_N + 1):
        if order > 1:
            last = word[order - 1 :]
            # a shorter n-gram and its next word as one integer, renumbered to avoid overflow
            keys, gram = np.unique(gram[: len(last)] * len(number) + last, return_inverse=True)
        inside = left[: len(gram)] >= order
        counted.append(_counts(sentence[: len(gram)][inside], gram[inside], keys))
    return counted


def document_frequency(counts: NgramCounts, image: Ints) -> Floats:
    """Return (G,), the number of images with the n-gram; image: (S,), of each sentence."""
    grams = max(counts.grams, 1)
    pairs = image[counts.sentence] * grams + counts.gram
    pairs.sort()  # np.unique, which hashes, takes many times as long
    pairs = pairs[np.append(True, np.diff(pairs) > 0)[: len(pairs)]]
    return np.bincount(pairs % grams, minlength=grams).astype(np.float64)


def _counts(sentence: Ints, gram: Ints, keys: Ints) -> NgramCounts:
    grams = max(len(keys), 1)
    entries, count = np.unique(sentence * grams + gram, return_counts=True)
    return NgramCounts(entries // grams, entries % grams, count, keys)
