"""Weights of n-grams of token ids for the reward of self-critical training."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from a2cap.model.errors import ModelError
from a2cap.model.self_critical.cider import inverse_frequencies
from a2cap.model.self_critical.ngrams import MAX_N, find_rows, look_up, ngram_keys


class InverseDocumentFrequencies:
    """Weights log(documents / document frequency) of n-grams, as in coco-caption's CiderScorer.

    ngrams: (M, 4) integers, tokens from 0, and -1 after the end of a shorter n-gram; the prefix of
    each n-gram must be present too. counts: (M,), documents that contain it. An unknown n-gram has
    the weight of one document. Raises ModelError for no documents or a missing prefix.
    """

    def __init__(self, ngrams: Tensor, counts: Tensor, *, documents: int) -> None:
        if documents < 1:
            raise ModelError(f"too few documents: {documents}; count over one image or more")
        self._words = int(ngrams.max()) + 1 if len(ngrams) else 1
        self._unknown = math.log(documents)
        self._keys: list[Tensor] = []
        self._weights: list[Tensor] = []
        lengths = (ngrams >= 0).sum(dim=1)
        for size in range(1, MAX_N + 1):
            rows, frequencies = ngrams[lengths == size].long(), counts[lengths == size]
            keys, order = self._new_keys(rows.T[:size]).sort()
            weights = inverse_frequencies(torch, frequencies[order].double(), documents=documents)
            # the last entry matches nothing, so that a search never ends beyond the table
            last = keys.new_full((1,), torch.iinfo(torch.int64).max)
            self._keys.append(torch.cat((keys, last)))
            self._weights.append(torch.cat((weights, weights.new_zeros(1))))

    def __call__(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yield the weight of the n-gram at each position, for n = 1 to 4.

        tokens: (L, ...) int32. Yields (max(0, L - n + 1), ...) float64.
        """
        tables = self._keys, self._weights
        return look_up(torch, tokens, *tables, words=self._words, unknown=self._unknown)

    def to(self, device: torch.device) -> "InverseDocumentFrequencies":
        """Move the tables to a device in place; return self."""
        self._keys = [keys.to(device) for keys in self._keys]
        self._weights = [weights.to(device) for weights in self._weights]
        return self

    def _new_keys(self, ngrams: Tensor) -> Tensor:
        """Return the keys of n-grams (n, m); needs the tables of all shorter lengths."""
        rows = torch.zeros_like(ngrams[0])
        for table, tokens in zip(self._keys, ngrams, strict=False):
            rows = find_rows(torch, table, ngram_keys(torch, rows, tokens, words=self._words))
        keys = ngram_keys(torch, rows, ngrams[-1], words=self._words)
        if (keys < 0).any():
            raise ModelError("document frequencies lack the prefix of an n-gram; count them again")
        return keys
