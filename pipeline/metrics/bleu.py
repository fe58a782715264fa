"""BLEU-1 to BLEU-4 (Papineni et al. 2002), corpus level, with the closest reference length.

Equal to `pycocoevalcap.bleu` 1.2, which is equal to its own to the last bits only: sums are taken
in another order here. The sums that a corpus value is made of are kept for each image, so that
images can be drawn anew without counting again.
"""

import numpy as np
from numpy.typing import NDArray

from a2cap.pipeline.metrics.ngrams import LONGEST, CountedPair, Floats, Ints, matches

COLUMNS = (
    "words",
    "reference_words",
    *(f"guessed_{n}" for n in range(1, LONGEST + 1)),
    *(f"correct_{n}" for n in range(1, LONGEST + 1)),
)
"""What `bleu_statistics` counts for each image, in this order."""

_SMALL, _TINY = 1e-9, 1e-15


def bleu_statistics(pair: CountedPair) -> Floats:
    """(N, 10): the COLUMNS of each image; over several images they are summed."""
    lengths = pair.candidate_lengths
    guessed = [np.maximum(lengths - n, 0) for n in range(LONGEST)]
    correct = [_correct(pair, n) for n in range(LONGEST)]
    return np.stack([lengths, _closest(pair), *guessed, *correct], axis=1).astype(np.float64)


def bleu_values(statistics: NDArray[np.floating]) -> Floats:
    """(…, 10) sums to (…, 4): BLEU-1 to BLEU-4 of the images that were summed."""
    words, reference_words = statistics[..., 0], statistics[..., 1]
    guessed, correct = statistics[..., 2:6], statistics[..., 6:10]
    precisions = np.cumprod((correct + _TINY) / (guessed + _SMALL), axis=-1)
    values = precisions ** (1 / np.arange(1, LONGEST + 1))
    ratio = (words + _TINY) / (reference_words + _SMALL)
    with np.errstate(over="ignore"):
        brevity = np.where(ratio < 1, np.exp(1 - 1 / np.minimum(ratio, 1)), 1.0)
    return np.asarray(values * brevity[..., None])


def _correct(pair: CountedPair, order: int) -> Ints:
    """(N,): n-grams of the candidate, each at most as often as in the one reference with most."""
    candidates, references = pair.candidates[order], pair.references[order]
    rows, places = matches(candidates, references, pair.image)
    most = np.zeros(len(candidates.count), dtype=np.int64)
    np.maximum.at(most, places, references.count[rows])
    clipped = np.minimum(most, candidates.count)
    sums = np.bincount(candidates.sentence, clipped, minlength=len(pair.candidate_lengths))
    return np.asarray(sums, dtype=np.int64)


def _closest(pair: CountedPair) -> Ints:
    """(N,): words of the reference that is nearest in length, of equals the shorter."""
    lengths = pair.reference_lengths
    span = int(lengths.max(initial=0)) + 1
    distance = np.abs(lengths - pair.candidate_lengths[pair.image])
    nearest = np.full(len(pair.candidate_lengths), np.iinfo(np.int64).max)
    np.minimum.at(nearest, pair.image, distance * span + lengths)
    return np.asarray(nearest % span)
