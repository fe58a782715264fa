"""n-grams of captions as arrays, which BLEU and CIDEr are computed from.

Words are split at white space, as pycocoevalcap's BLEU and CIDEr do. Orders n count from 1 to 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 4
"""Words of the longest n-gram."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NgramCounts:
    """How often each n-gram of one order occurs in each sentence; a row for each pair that does.

    sentence, gram, count: (E,) int64, sorted by sentence, then gram; grams are numbered from 0.
    """

    sentence: Ints
    gram: Ints
    count: Ints
    grams: int

    def of(self, start: int, stop: int) -> "NgramCounts":
        """The rows of sentences `start` to `stop`, which are then numbered from 0."""
        first, last = np.searchsorted(self.sentence, [start, stop])
        rows = slice(first, last)
        return NgramCounts(
            self.sentence[rows] - start, self.gram[rows], self.count[rows], self.grams
        )


@dataclass(frozen=True)
class CountedPair:
    """Candidates and references of N images, with their n-grams.

    candidates, references: one NgramCounts for each order; sentence i of the candidates is of
    image i. image: (S,) int64, the image of each reference.
    candidate_lengths: (N,) and reference_lengths: (S,) int64, in words.
    """

    candidates: list[NgramCounts]
    references: list[NgramCounts]
    image: Ints
    candidate_lengths: Ints
    reference_lengths: Ints


def count_pair(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> CountedPair:
    """The n-grams of one candidate for each image, and of the image's references."""
    split = [sentence.split() for sentence in candidates]
    split += [sentence.split() for group in references for sentence in group]
    counted = _count(split)
    lengths = np.array([len(words) for words in split], dtype=np.int64)
    n = len(candidates)
    return CountedPair(
        candidates=[counts.of(0, n) for counts in counted],
        references=[counts.of(n, len(split)) for counts in counted],
        image=np.repeat(np.arange(n), [len(group) for group in references]),
        candidate_lengths=lengths[:n],
        reference_lengths=lengths[n:],
    )


def count_ngrams(sentences: Sequence[str]) -> list[NgramCounts]:
    """The n-grams of each sentence, for n = 1, 2, 3, 4."""
    return _count([sentence.split() for sentence in sentences])


def document_frequency(counts: NgramCounts, image: Ints) -> Floats:
    """(G,): images with a sentence that holds the n-gram; image: (S,), of each sentence."""
    grams = max(counts.grams, 1)
    documents = np.unique(image[counts.sentence] * grams + counts.gram)
    return np.bincount(documents % grams, minlength=grams).astype(np.float64)


def _count(sentences: Sequence[Sequence[str]]) -> list[NgramCounts]:
    number: dict[str, int] = {}
    words = [number.setdefault(word, len(number)) for words in sentences for word in words]
    word = np.array(words, dtype=np.int64)
    lengths = [len(words) for words in sentences]
    sentence = np.repeat(np.arange(len(sentences)), lengths)
    left = np.cumsum(lengths)[sentence] - np.arange(len(word))  # words from here to the end
    gram, counted = word, []
    for order in range(1, LONGEST + 1):
        if order > 1:
            gram = _extended(gram, word, len(number), order)
        inside = left[: len(gram)] >= order
        counted.append(_rows(sentence[: len(gram)][inside], gram[inside]))
    return counted


def _extended(gram: Ints, word: Ints, words: int, order: int) -> Ints:
    """Numbers of the n-grams that begin at each place, of those one word shorter."""
    last = word[order - 1 :]
    _, numbers = np.unique(gram[: len(last)] * words + last, return_inverse=True)
    return np.asarray(numbers)


def _rows(sentence: Ints, gram: Ints) -> NgramCounts:
    grams = int(gram.max(initial=-1)) + 1
    keys, count = np.unique(sentence * grams + gram, return_counts=True)
    return NgramCounts(keys // max(grams, 1), keys % max(grams, 1), count, grams)


def matches(candidates: NgramCounts, references: NgramCounts, image: Ints) -> tuple[Ints, Ints]:
    """Rows of the references whose n-gram is in the candidate of their image, and its rows."""
    wanted = image[references.sentence] * references.grams + references.gram
    held = candidates.sentence * references.grams + candidates.gram
    place = np.searchsorted(held, wanted)
    place[place == len(held)] = 0
    found = np.flatnonzero(held[place] == wanted) if len(held) else np.empty(0, dtype=np.int64)
    return found, place[found]
