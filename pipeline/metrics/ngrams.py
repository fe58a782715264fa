"""n-gram counts of captions as arrays, for BLEU, CIDEr and caption statistics.

Sentences are split at white space, as in pycocoevalcap's BLEU and CIDEr. Orders n are 1 to 4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from a2cap.model.self_critical.cider import MAX_N

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    """n-grams of N candidates and of their S references.

    candidates, references: one NgramCounts for each order; sentence i of the candidates is of
    image i. image: (S,) int64, the image of each reference.
    candidate_lengths: (N,) and reference_lengths: (S,) int64, in words. words: by number, which is
    that of the unigram too.
    """

    candidates: list[NgramCounts]
    references: list[NgramCounts]
    image: Ints
    candidate_lengths: Ints
    reference_lengths: Ints
    words: list[str]


def count_pair(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> PairCounts:
    """Count the n-grams of one candidate per image and of the image's references."""
    sentences = [*candidates, *(sentence for group in references for sentence in group)]
    counted = count_ngrams(sentences)
    lengths = np.array([len(sentence.split()) for sentence in sentences], dtype=np.int64)
    n = len(candidates)
    return PairCounts(
        candidates=[counts.slice(0, n) for counts in counted],
        references=[counts.slice(n, len(sentences)) for counts in counted],
        image=np.repeat(np.arange(n), [len(group) for group in references]),
        candidate_lengths=lengths[:n],
        reference_lengths=lengths[n:],
        words=distinct_words(sentences),
    )


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
            keys, gram = _extended(gram, word, len(number), order)
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


def matches(candidates: NgramCounts, references: NgramCounts, image: Ints) -> tuple[Ints, Ints]:
    """Return entries of the references that are in their image's candidate, and its entries."""
    wanted = image[references.sentence] * references.grams + references.gram
    keys = candidates.sentence * references.grams + candidates.gram
    position = np.searchsorted(keys, wanted)
    position[position == len(keys)] = 0
    found = np.flatnonzero(keys[position] == wanted) if len(keys) else np.empty(0, dtype=np.int64)
    return found, position[found]


def _extended(gram: Ints, word: Ints, words: int, order: int) -> tuple[Ints, Ints]:
    """Return the keys of n-grams, and the number of the n-gram that starts at each position."""
    last = word[order - 1 :]
    # A shorter n-gram and its next word as one integer, renumbered to avoid overflow.
    keys, numbers = np.unique(gram[: len(last)] * words + last, return_inverse=True)
    return keys, np.asarray(numbers)


def _counts(sentence: Ints, gram: Ints, keys: Ints) -> NgramCounts:
    grams = max(len(keys), 1)
    entries, count = np.unique(sentence * grams + gram, return_counts=True)
    return NgramCounts(entries // grams, entries % grams, count, keys)
