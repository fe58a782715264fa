"""CIDEr-D (Vedantam et al. 2015, section 5, arXiv:1411.5726), over arrays of numpy or torch.

The reward of self-critical training counts n-grams of token ids in dense tensors on any device, the
metric counts those of words in sparse arrays. Both are computed from the functions here; `xp` is
the module of their arrays, numpy or torch. Nothing here imports torch, so that scoring need not.
"""

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "Tensor", NDArray[Any])

MAX_N = 4
"""Tokens of the longest n-gram, in CIDEr as in BLEU."""

_SIGMA = 6.0
"""Standard deviation of the Gaussian length penalty, in tokens."""


def ngram_keys(xp: ModuleType, prefixes: Array, last: Array, *, words: int) -> Array:
    """Return keys of the n-grams that extend rows of shorter ones by a word, -1 if unknown.

    prefixes: rows of a table of sorted keys, -1 for unknown ones, 0 before the first word. last:
    numbers of words, unknown outside [0, words).
    """
    known = (prefixes >= 0) & (last >= 0) & (last < words)
    keys: Array = xp.where(known, prefixes * words + last, -1)
    return keys


def find_rows(xp: ModuleType, table: Array, keys: Array) -> Array:
    """Return the rows of keys in a sorted table, -1 if missing; its last key matches nothing."""
    rows = xp.searchsorted(table, keys)
    found: Array = xp.where(table[rows] == keys, rows, -1)
    return found


def inverse_frequencies(xp: ModuleType, frequencies: Array, *, documents: int) -> Array:
    """Return the weights log(documents / frequency); below 1, a frequency counts as 1."""
    weights: Array = math.log(documents) - xp.log(xp.clip(frequencies, 1, None))
    return weights


def clipped_products(xp: ModuleType, own: Array, found: Array, squares: Array) -> Array:
    """Return the summands of the product of the TF-IDF vectors of a caption and a reference.

    own, found: counts of n-grams in the caption and in the reference; squares: their squared
    weights. The caption's count is clipped at the reference's (section 5).
    """
    products: Array = xp.minimum(own, found) * found * squares
    return products


def length_penalties(xp: ModuleType, differences: Array) -> Array:
    """Return the Gaussian penalties of float64 differences of lengths.

    Not in the paper: coco-caption measures lengths in 2-grams.
    """
    penalties: Array = xp.exp(-(differences**2) / (2 * _SIGMA**2))
    return penalties


def mean_score(summed: Array, references: Array) -> Array:
    """Return CIDEr-D, from 0 to 10, of penalised similarities summed over orders and references."""
    scores: Array = 10 / MAX_N * summed / references
    return scores
