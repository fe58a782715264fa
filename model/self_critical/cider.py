"""CIDEr-D (Vedantam et al. 2015, section 5, arXiv:1411.5726), over arrays of numpy or torch.

The reward of self-critical training and the metric are both computed here; `xp` is the module of
the arrays. Nothing here imports torch, so that scoring need not.
"""

import math
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from a2cap.model.self_critical.ngrams import MAX_N, Array, NgramCounts

_SIGMA = 6.0
"""Standard deviation of the Gaussian length penalty, in tokens."""


def inverse_frequencies(xp: ModuleType, frequencies: Array, *, documents: int) -> Array:
    """Return the weights log(documents / frequency); below 1, a frequency counts as 1."""
    weights: Array = math.log(documents) - xp.log(xp.clip(frequencies, 1, None))
    return weights


def vector_norms(
    xp: ModuleType, weights: Iterable[Array], counts: Iterable[Array], exists: Iterable[Array]
) -> Iterator[Array]:
    """Yield the norms of TF-IDF vectors, (...) float64, for n = 1 to 4.

    weights, counts, exists: (L', ...), of the n-gram at each position in its own caption.
    """
    for weight, count, valid in zip(weights, counts, exists, strict=True):
        # each of two occurrences of an n-gram contributes half of count² weight²
        yield xp.sqrt(xp.sum(weight**2 * count * valid, axis=0))


def cider_d(
    xp: ModuleType,
    counts: NgramCounts[Array],
    weights: Iterable[Array],
    reference_norms: Iterable[Array],
    *,
    lengths: Array,
    reference_lengths: Array,
) -> Array:
    """Return CIDEr-D, from 0 to 10, (B, K) float64.

    weights: of each order, (L', B, K) float64.
    reference_norms: of each order, (B, G) float64.
    lengths: (B, K).
    reference_lengths: (B, G), integers in tokens, negative for no reference.
    """
    # A vector has an entry for each n-gram, but none is made: each position of a caption adds its
    # n-gram's product divided by the n-gram's count there. So a dot product is a sum over
    # positions, of equal shape for all captions.
    exists = (reference_lengths >= 0)[:, None]  # (B, G) -> (B, 1, G)
    weights = list(weights)
    norms = vector_norms(xp, weights, counts.in_caption, counts.valid)
    similarity: Any = 0
    for weight, count, in_references, valid, norm, reference_norm in zip(
        *(weights, counts.in_caption, counts.in_references, counts.valid, norms, reference_norms),
        strict=True,
    ):
        # the caption's count is clipped at the reference's (section 5)
        # (L', B, K, 1), (L', B, K, G) -> (L', B, K, G)
        clipped = xp.minimum(count[..., None], in_references) * in_references
        shared = xp.sum(clipped * (weight**2 * valid / count)[..., None], axis=0)  # -> (B, K, G)
        product = norm[..., None] * reference_norm[:, None]  # (B, K, 1) * (B, 1, G)
        similarity = similarity + shared / xp.where(product > 0, product, 1)
    # not in the paper: coco-caption measures lengths in 2-grams
    own_pairs, other_pairs = (xp.clip(n - 1, 0, None) for n in (lengths, reference_lengths))
    difference = xp.asarray(own_pairs[..., None] - other_pairs[:, None], dtype=xp.float64)
    penalised = similarity * xp.exp(-(difference**2) / (2 * _SIGMA**2)) * exists
    # (B, K, G) -> (B, K)
    scores: Array = 10 / MAX_N * xp.sum(penalised, axis=-1) / xp.sum(exists, axis=-1)
    return scores
