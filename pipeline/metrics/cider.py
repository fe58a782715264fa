"""CIDEr-D (Vedantam et al. 2015), with document frequencies of the references that are scored.

Equal to `pycocoevalcap.cider` 1.2 but for the last bits, as sums are taken in another order.
"""

import numpy as np

from a2cap.pipeline.metrics.ngrams import (
    LONGEST,
    CountedPair,
    Floats,
    NgramCounts,
    document_frequency,
    matches,
)

_SIGMA = 6.0
"""Words of difference in length after which the similarity has fallen to 0.61."""


def cider_values(pair: CountedPair) -> Floats:
    """(N,): CIDEr-D of each image; its mean is the value over all."""
    similarity = np.zeros(len(pair.reference_lengths))
    for order in range(LONGEST):
        similarity += _cosine(pair, order)
    similarity *= _length_penalty(pair)
    images = len(pair.candidate_lengths)
    references = np.bincount(pair.image, minlength=images)
    summed = np.bincount(pair.image, similarity, minlength=images)
    return np.asarray(10 * summed / LONGEST / references)


def _cosine(pair: CountedPair, order: int) -> Floats:
    """(S,): of each reference with its candidate, with the candidate's counts clipped."""
    candidates, references = pair.candidates[order], pair.references[order]
    frequency = document_frequency(references, pair.image)
    rarity = np.log(float(len(pair.candidate_lengths))) - np.log(np.maximum(1.0, frequency))
    of_candidates = candidates.count * rarity[candidates.gram]
    of_references = references.count * rarity[references.gram]
    rows, places = matches(candidates, references, pair.image)
    common = np.minimum(of_candidates[places], of_references[rows]) * of_references[rows]
    sentences = len(pair.reference_lengths)
    product = np.bincount(references.sentence[rows], common, minlength=sentences)
    norms = _norms(candidates, of_candidates, len(pair.candidate_lengths))[pair.image]
    norms = norms * _norms(references, of_references, sentences)
    return np.asarray(product / np.where(norms == 0, 1, norms))


def _norms(counts: NgramCounts, weights: Floats, sentences: int) -> Floats:
    return np.sqrt(np.bincount(counts.sentence, weights**2, minlength=sentences))


def _length_penalty(pair: CountedPair) -> Floats:
    # pycocoevalcap takes the number of bigrams for the length.
    candidates = np.maximum(pair.candidate_lengths - 1, 0)[pair.image]
    difference = candidates - np.maximum(pair.reference_lengths - 1, 0)
    return np.asarray(np.exp(-(difference**2) / (2 * _SIGMA**2)))
