"""n-grams of batches of captions as dense arrays of numpy or torch, without hashing.

A batch of N captions is an (L, N) int32 array, positions first, so that captions are contiguous in
memory. An n-gram is identified by the position of its first token. The reward of self-critical
training counts token ids on any device, the metrics count words; `xp` is the module of the arrays,
numpy or torch. Nothing here imports torch, so that scoring need not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "Tensor", NDArray[Any])

MAX_N = 4
"""Tokens of the longest n-gram, in CIDEr as in BLEU."""

END_OF_CAPTION, END_OF_REFERENCE = -1, -2
"""Padding of captions and of references; different, so that padding never matches."""


def count_occurrences(xp: ModuleType, tokens: Array, references: Array) -> Iterator[Array]:
    """Count the n-gram at each position of `tokens` in `references`, for n = 1 to 4.

    tokens: (L, ...) int32; others: (M, ...) int32; the other axes broadcast. Yields
    (max(0, L - n + 1), ...) int32, undefined for n-grams beyond the caption's end (see
    `ngram_exists`).
    """
    # n-grams are equal if their first tokens and the (n-1)-grams after these are equal
    equal: Any = references[:, None] == tokens  # (M, 1, ...) == (L, ...) -> (M, L, ...)
    longer = equal
    yield xp.sum(longer, axis=0, dtype=xp.int32)  # -> (L, ...)
    for size in range(2, MAX_N + 1):
        longer = equal[: 1 - size, : 1 - size] & longer[1:, 1:]  # -> (M - n + 1, L - n + 1, ...)
        yield xp.sum(longer, axis=0, dtype=xp.int32)


def ngram_exists(tokens: Array) -> Iterator[Array]:
    """Yield where an n-gram ends within its caption, for n = 1 to 4.

    tokens: (L, ...) int32. Yields (max(0, L - n + 1), ...) bool.
    """
    exists: Any = tokens >= 0
    for size in range(1, MAX_N + 1):
        yield exists[size - 1 :]


@dataclass(frozen=True)
class NgramCounts(Generic[Array]):
    """Counts of the n-gram at each position of captions, one array for each n = 1 to 4.

    in_caption: (L', B, K), in the caption itself; in_references: (L', B, K, G);
    valid: (L', B, K) bool, True where an n-gram exists.
    """

    in_caption: list[Array]
    in_references: list[Array]
    valid: list[Array]

    @classmethod
    def of(cls, xp: ModuleType, tokens: Array, references: Array) -> "NgramCounts[Array]":
        """Count the n-grams of captions (L, B, K) in themselves and in references (M, B, G)."""
        return cls(
            list(count_occurrences(xp, tokens, tokens)),
            list(count_occurrences(xp, tokens[..., None], references[:, :, None])),
            list(ngram_exists(tokens)),
        )

    def correct(self, xp: ModuleType) -> Iterator[Array]:
        """Yield BLEU's matches, clipped at the largest count in one reference, (B, K) float64."""
        columns = self.in_caption, self.in_references, self.valid
        for count, matches, valid in zip(*columns, strict=True):
            most = xp.asarray(xp.minimum(xp.amax(matches, axis=-1), count), dtype=xp.float64)
            # each of two occurrences of an n-gram contributes half
            yield xp.sum(most / count * valid, axis=0)


def closest_lengths(xp: ModuleType, lengths: Array, references: Array) -> Array:
    """Return the reference length closest to each caption's, the shorter one in a tie.

    lengths: (B, K) integers; references: (B, G), negative for none. Returns (B, K).
    """
    candidates = references[:, None]  # (B, G) -> (B, 1, G)
    # one integer orders by distance, then length
    span = references.max() + 1
    ranks = xp.abs(lengths[..., None] - candidates) * span + candidates  # -> (B, K, G)
    ranks = xp.where(candidates < 0, xp.iinfo(xp.int64).max, ranks)
    closest: Array = xp.amin(ranks, axis=-1) % span
    return closest


def ngram_keys(xp: ModuleType, prefixes: Array, last: Array, *, words: int) -> Array:
    """Return keys of the n-grams that extend rows of shorter ones by a word, -1 if unknown.

    prefixes: rows of a table of sorted keys, -1 for unknown ones, 0 before the first word.
    last: numbers of words, unknown outside [0, words).
    """
    is_known = (prefixes >= 0) & (last >= 0) & (last < words)
    keys: Array = xp.where(is_known, prefixes * words + last, -1)
    return keys


def find_rows(xp: ModuleType, table: Array, keys: Array) -> Array:
    """Return the rows of keys in a sorted table, -1 if missing; its last key matches nothing."""
    rows = xp.searchsorted(table, keys.reshape(-1)).reshape(keys.shape)
    matched: Array = xp.where(table[rows] == keys, rows, -1)
    return matched


def look_up(
    xp: ModuleType,
    tokens: Array,
    keys: list[Array],
    values: list[Array],
    *,
    words: int,
    unknown: float,
) -> Iterator[Array]:
    """Yield the value of the n-gram at each position, for n = 1 to 4.

    tokens: (L, ...) integers.
    keys, values: tables of the n-grams of each length, (G + 1,); a key is the row of the n-gram
        without its last word, times `words`, plus the last word.
    Yields (max(0, L - n + 1), ...), `unknown` for an n-gram that is not in its table.
    """
    rows = xp.zeros_like(tokens, dtype=xp.int64)
    for size, (table, column) in enumerate(zip(keys, values, strict=True), start=1):
        last = tokens[size - 1 :]
        rows = find_rows(xp, table, ngram_keys(xp, rows[: len(last)], last, words=words))
        yield xp.where(rows >= 0, column[rows], unknown)
