"""Corpus-level BLEU-1 to BLEU-4 (Papineni et al. 2002) with the closest reference length.

Equal to `pycocoevalcap.bleu` 1.2 except for the last bits, because the order of summation differs.
The counts of each image are kept, so that a bootstrap does not count n-grams again.
"""

import numpy as np
from numpy.typing import NDArray

from a2cap.model.self_critical.ngrams import MAX_N, closest_lengths
from a2cap.pipeline.metrics.ngrams import Floats, Pairs

COLUMNS = (
    "words",
    "reference_words",
    *(f"guessed_{n}" for n in range(1, MAX_N + 1)),
    *(f"correct_{n}" for n in range(1, MAX_N + 1)),
)
"""Columns of `bleu_statistics`."""

# pycocoevalcap's constants against division by zero.
_SMALL, _TINY = 1e-9, 1e-15


def bleu_statistics(pairs: Pairs) -> Floats:
    """Return (N, 10), the COLUMNS of each image; sums over images give corpus values."""
    statistics = np.empty((pairs.captions, len(COLUMNS)))
    for part in pairs.parts:
        guessed = [np.maximum(part.lengths - n, 0) for n in range(MAX_N)]
        closest = closest_lengths(np, part.lengths, part.reference_lengths)
        # thirds of three occurrences do not add up to one
        correct = map(np.rint, part.counts.correct(np))
        statistics[part.rows] = np.hstack([part.lengths, closest, *guessed, *correct])
    return statistics


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
