"""N-gram counts and weights of a batch of captions, as tensor operations without hashing.

A batch of N captions is an (L, N) int32 tensor, positions first, so that captions are contiguous in
memory. An n-gram is identified by the position of its first token.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.errors import ModelError
from a2cap.model.self_critical.cider import MAX_N, find_rows, inverse_frequencies, ngram_keys

END_OF_CAPTION, END_OF_REFERENCE = -1, -2
"""Padding of captions and of references; different, so that padding never matches."""


def count_occurrences(tokens: Tensor, others: Tensor) -> Iterator[Tensor]:
    """Count the n-gram at each position of `tokens` in `others`, for n = 1 to 4.

    tokens: (L, ...) int32; others: (M, ...) int32; the other axes broadcast. Yields
    (max(0, L - n + 1), ...) int32, undefined for n-grams beyond the caption's end (see
    `ngram_exists`).
    """
    # n-grams are equal if their first tokens and the (n-1)-grams after these are equal
    equal = others[:, None] == tokens  # (M, L, ...)
    longer = equal
    yield longer.sum(dim=0, dtype=torch.int32)
    for size in range(2, MAX_N + 1):
        longer = equal[: 1 - size, : 1 - size] & longer[1:, 1:]
        yield longer.sum(dim=0, dtype=torch.int32)


def ngram_exists(tokens: Tensor) -> Iterator[Tensor]:
    """Yield where an n-gram ends within its caption, for n = 1 to 4.

    tokens: (L, ...) int32. Yields (max(0, L - n + 1), ...) bool.
    """
    exists = tokens >= 0
    for size in range(1, MAX_N + 1):
        yield exists[size - 1 :]


class InverseDocumentFrequencies:
    """Weights log(documents / document frequency) of n-grams, as in coco-caption's CiderScorer.

    ngrams: (M, 4) integers, tokens from 0, and -1 after the end of a shorter n-gram; the prefix of
    each n-gram must be present too. counts: (M,), documents that contain it. An unknown n-gram has
    the weight of one document. Raises ModelError for no documents or a missing prefix.
    """

    def __init__(self, ngrams: Tensor, counts: Tensor, *, documents: int) -> None:
        if documents < 1:
            raise ModelError(f"too few documents: {documents}; count over one image or more")
        self._vocabulary_size = int(ngrams.max()) + 1 if len(ngrams) else 1
        self._unknown = torch.tensor(documents, dtype=torch.float64).log()
        self._tables: list[_Table] = []
        lengths = (ngrams >= 0).sum(dim=1)
        for size in range(1, MAX_N + 1):
            rows, frequencies = ngrams[lengths == size].long(), counts[lengths == size]
            keys, order = self._keys(rows.T[:size]).sort()
            weights = inverse_frequencies(torch, frequencies[order].double(), documents=documents)
            # the last entry matches nothing, so that a search never ends beyond the table
            last = keys.new_full((1,), torch.iinfo(torch.int64).max)
            self._tables.append(
                _Table(torch.cat((keys, last)), torch.cat((weights, weights.new_zeros(1))))
            )

    def __call__(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yield the weight of the n-gram at each position, for n = 1 to 4.

        tokens: (L, ...) int32. Yields (max(0, L - n + 1), ...) float64.
        """
        rows = torch.zeros_like(tokens, dtype=torch.int64)
        for size, table in enumerate(self._tables, start=1):
            rows = table.find(self._next_keys(rows, tokens[size - 1 :]))
            yield torch.where(rows >= 0, table.weights[rows], self._unknown)

    def to(self, device: torch.device) -> "InverseDocumentFrequencies":
        """Move the tables to a device in place; return self."""
        self._unknown = self._unknown.to(device)
        self._tables = [
            _Table(table.keys.to(device), table.weights.to(device)) for table in self._tables
        ]
        return self

    def _keys(self, ngrams: Tensor) -> Tensor:
        """Return the keys of n-grams (n, m); needs the tables of all shorter lengths."""
        rows = torch.zeros_like(ngrams[:1], dtype=torch.int64)
        for table, tokens in zip(self._tables, ngrams, strict=False):
            rows = table.find(self._next_keys(rows, tokens[None]))
        keys = self._next_keys(rows, ngrams[-1:]).squeeze(0)
        if (keys < 0).any():
            raise ModelError("document frequencies lack the prefix of an n-gram; count them again")
        return keys

    def _next_keys(self, rows: Tensor, last: Tensor) -> Tensor:
        """Return keys of the n-grams that extend the prefixes `rows` by `last`, -1 if unknown."""
        return ngram_keys(torch, rows[: len(last)], last, words=self._vocabulary_size)


@dataclass(frozen=True)
class _Table:
    """Sorted table of the m n-grams of one length, and a last entry that matches nothing.

    keys: (m + 1,) int64, row of the prefix in the table of shorter n-grams, times the vocabulary
    size, plus the last token. weights: (m + 1,) float64.
    """

    keys: Tensor
    weights: Tensor

    def find(self, keys: Tensor) -> Tensor:
        """Return the rows of keys, -1 for unknown ones."""
        return find_rows(torch, self.keys, keys.contiguous())
