"""Corpus-level BLEU-1 to BLEU-4 (Papineni et al. 2002) with the closest reference length.

Equal to `pycocoevalcap.bleu` 1.2 except for the last bits, because the order of summation differs.
The counts of each image are kept, so that a bootstrap does not count n-grams again.
"""

import numpy as np
from numpy.typing import NDArray

from a2cap.model.self_critical.cider import MAX_N
from a2cap.pipeline.metrics.ngrams import Floats, Ints, PairCounts, matches

COLUMNS = (
    "words",
    "reference_words",
    *(f"guessed_{n}" for n in range(1, MAX_N + 1)),
    *(f"correct_{n}" for n in range(1, MAX_N + 1)),
)
"""Columns of `bleu_statistics`."""

# pycocoevalcap's constants against division by zero.
_SMALL, _TINY = 1e-9, 1e-15


def bleu_statistics(pair: PairCounts) -> Floats:
    """Return (N, 10), the COLUMNS of each image; sums over images give corpus values."""
    lengths = pair.candidate_lengths
    guessed = [np.maximum(lengths - n, 0) for n in range(MAX_N)]
    correct = [_correct(pair, n) for n in range(MAX_N)]
    return np.stack([lengths, _closest(pair), *guessed, *correct], axis=1).astype(np.float64)


def bleu_values(statistics: NDArray[np.floating], *, penalised: bool = True) -> Floats:
    """Return BLEU-1 to BLEU-4, (…, 4), of summed statistics (…, 10).

    penalised: False for those without the brevity penalty, as Xu et al. 2015 report them.
    """
    words, reference_words = statistics[..., 0], statistics[..., 1]
    guessed, correct = statistics[..., 2:6], statistics[..., 6:10]
    precisions = np.cumprod((correct + _TINY) / (guessed + _SMALL), axis=-1)
    values = precisions ** (1 / np.arange(1, MAX_N + 1))
    ratio = (words + _TINY) / (reference_words + _SMALL)
    with np.errstate(over="ignore"):
        brevity = np.where(ratio < 1, np.exp(1 - 1 / np.minimum(ratio, 1)), 1.0)
    return np.asarray(values * brevity[..., None] if penalised else values)


def _correct(pair: PairCounts, order: int) -> Ints:
    """Return (N,), matching n-grams, clipped at the largest count in one reference."""
    candidates, references = pair.candidates[order], pair.references[order]
    rows, positions = matches(candidates, references, pair.image)
    largest = np.zeros(len(candidates.count), dtype=np.int64)
    np.maximum.at(largest, positions, references.count[rows])
    clipped = np.minimum(largest, candidates.count)
    sums = np.bincount(candidates.sentence, clipped, minlength=len(pair.candidate_lengths))
    return np.asarray(sums, dtype=np.int64)


def _closest(pair: PairCounts) -> Ints:
    """Return (N,), the closest reference length; the shorter one in a tie."""
    lengths = pair.reference_lengths
    span = int(lengths.max(initial=0)) + 1
    distance = np.abs(lengths - pair.candidate_lengths[pair.image])
    # One integer orders by distance, then length.
    nearest = np.full(len(pair.candidate_lengths), np.iinfo(np.int64).max)
    np.minimum.at(nearest, pair.image, distance * span + lengths)
    return np.asarray(nearest % span)
