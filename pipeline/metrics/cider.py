"""CIDEr-D (Vedantam et al. 2015) of an evaluation.

Document frequencies are those of the references that are scored. Equal to `pycocoevalcap.cider` 1.2
except for the last bits, because the order of summation differs. The reward of self-critical
training is `a2cap.model.self_critical`: the same metric over token ids, with document frequencies
of the training split.
"""

import numpy as np

from a2cap.pipeline.metrics.ngrams import (
    LONGEST,
    Floats,
    Ints,
    NgramCounts,
    PairCounts,
    document_frequency,
    matches,
)

_SIGMA = 6.0
"""Standard deviation of the Gaussian length penalty."""


def cider_values(pair: PairCounts, document: Ints | None = None) -> Floats:
    """Return (N,), CIDEr-D of each candidate; the corpus value is their mean.

    document: (N,), the image of each candidate, if several are of one image.
    """
    documents = np.arange(len(pair.candidate_lengths)) if document is None else document
    similarity = np.zeros(len(pair.reference_lengths))
    for order in range(LONGEST):
        similarity += _cosine(pair, order, documents)
    similarity *= _length_penalty(pair)
    images = len(pair.candidate_lengths)
    references = np.bincount(pair.image, minlength=images)
    summed = np.bincount(pair.image, similarity, minlength=images)
    return np.asarray(10 * summed / LONGEST / references)


def _cosine(pair: PairCounts, order: int, documents: Ints) -> Floats:
    """Return (S,), the TF-IDF cosine of each reference and its candidate with clipped counts."""
    candidates, references = pair.candidates[order], pair.references[order]
    frequency = document_frequency(references, documents[pair.image])
    count = len(np.unique(documents))
    idf = np.log(float(count)) - np.log(np.maximum(1.0, frequency))
    candidate_weights = candidates.count * idf[candidates.gram]
    reference_weights = references.count * idf[references.gram]
    rows, positions = matches(candidates, references, pair.image)
    common = np.minimum(candidate_weights[positions], reference_weights[rows])
    sentences = len(pair.reference_lengths)
    product = np.bincount(
        references.sentence[rows], common * reference_weights[rows], minlength=sentences
    )
    norms = _norms(candidates, candidate_weights, len(pair.candidate_lengths))[pair.image]
    norms = norms * _norms(references, reference_weights, sentences)
    return np.asarray(product / np.where(norms == 0, 1, norms))


def _norms(counts: NgramCounts, weights: Floats, sentences: int) -> Floats:
    return np.sqrt(np.bincount(counts.sentence, weights**2, minlength=sentences))


def _length_penalty(pair: PairCounts) -> Floats:
    # As in pycocoevalcap, length is the number of bigrams.
    candidates = np.maximum(pair.candidate_lengths - 1, 0)[pair.image]
    difference = candidates - np.maximum(pair.reference_lengths - 1, 0)
    return np.asarray(np.exp(-(difference**2) / (2 * _SIGMA**2)))
