"""N-grams of captions as numbers, counted for a whole batch at once.

A batch of N captions is a (L, N) int32 tensor of words, the positions first so that what is
contiguous in memory are the captions. An n-gram stands for the position where it begins. How often
it occurs follows from comparing every position with every other one: two n-grams are equal where
their first words and the (n-1)-grams after these are. No n-gram is ever hashed or made an object.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.errors import ModelError

LONGEST = 4
"""Words of the longest n-gram, in CIDEr as in BLEU."""

END_OF_CAPTION, END_OF_REFERENCE = -1, -2
"""What fills captions and references after their end; they differ, so that they never match."""


def occurrences(words: Tensor, others: Tensor) -> Iterator[Tensor]:
    """How often the n-gram at each position of `words` occurs in `others`, for n = 1 to 4.

    words: (L, ...) int32; others: (M, ...) int32, of shapes that broadcast but for the first axis.
    Yields (max(0, L - n + 1), ...) int32; where an n-gram reaches beyond its caption's end, the
    number means nothing (see `inside`).
    """
    equal = others[:, None] == words  # (M, L, ...)
    longer = equal
    yield longer.sum(dim=0, dtype=torch.int32)
    for size in range(2, LONGEST + 1):
        longer = equal[: 1 - size, : 1 - size] & longer[1:, 1:]
        yield longer.sum(dim=0, dtype=torch.int32)


def inside(words: Tensor) -> Iterator[Tensor]:
    """Whether the n-gram at each position ends within its caption, for n = 1 to 4.

    words: (L, ...) int32. Yields (max(0, L - n + 1), ...) bool.
    """
    exists = words >= 0
    for size in range(1, LONGEST + 1):
        yield exists[size - 1 :]


class InverseDocumentFrequencies:
    """log(documents / document frequency) of n-grams, as coco-caption's CiderScorer takes it.

    ngrams: (M, 4) integers, words from 0 and -1 after the end of a shorter n-gram; with each n-gram
    the one without its last word is there too. counts: (M,), of the documents that hold it. An
    n-gram that is not among them weighs as if one document held it.
    """

    def __init__(self, ngrams: Tensor, counts: Tensor, *, documents: int) -> None:
        if documents < 1:
            raise ModelError(f"too few documents: {documents}; count over one image or more")
        self._words = int(ngrams.max()) + 1 if len(ngrams) else 1
        self._unknown = torch.tensor(documents, dtype=torch.float64).log()
        self._levels: list[_Level] = []
        lengths = (ngrams >= 0).sum(dim=1)
        for size in range(1, LONGEST + 1):
            rows, of_size = ngrams[lengths == size].long(), counts[lengths == size]
            keys, order = self._keys(rows.T[:size]).sort()
            weights = self._unknown - of_size[order].double().clamp(min=1).log()
            self._levels.append(_level(keys, weights))

    def __call__(self, words: Tensor) -> Iterator[Tensor]:
        """The weight of the n-gram at each position, for n = 1 to 4.

        words: (L, ...) int32. Yields (max(0, L - n + 1), ...) float64.
        """
        places = torch.zeros_like(words, dtype=torch.int64)
        for size, level in enumerate(self._levels, start=1):
            places = level.places(self._next_keys(places, words[size - 1 :]))
            yield torch.where(places >= 0, level.weights[places], self._unknown)

    def to(self, device: torch.device) -> "InverseDocumentFrequencies":
        """Moves the table to a device, and returns it."""
        self._unknown = self._unknown.to(device)
        self._levels = [
            _Level(level.keys.to(device), level.weights.to(device)) for level in self._levels
        ]
        return self

    def _keys(self, words: Tensor) -> Tensor:
        """Keys of the n-grams (n, m) among those of their length; all shorter levels are made."""
        places = torch.zeros_like(words[:1], dtype=torch.int64)
        for level, word in zip(self._levels, words, strict=False):
            places = level.places(self._next_keys(places, word[None]))
        keys = self._next_keys(places, words[-1:]).squeeze(0)
        if (keys < 0).any():
            raise ModelError(
                "document frequencies lack the beginning of an n-gram; count them again"
            )
        return keys

    def _next_keys(self, places: Tensor, last: Tensor) -> Tensor:
        """Keys of n-grams one word longer than those at `places`, -1 where there can be none."""
        places = places[: len(last)]
        known = (places >= 0) & (last >= 0) & (last < self._words)
        return torch.where(known, places * self._words + last, -1)


@dataclass(frozen=True)
class _Level:
    """The m n-grams of one length, sorted, and one more entry that nothing equals.

    keys: (m + 1,) int64, the place of the n-gram without its last word among those one word
    shorter, times the number of words, plus the last word. weights: (m + 1,) float64.
    """

    keys: Tensor
    weights: Tensor

    def places(self, keys: Tensor) -> Tensor:
        """Where keys stand, -1 where they do not."""
        places = torch.searchsorted(self.keys, keys.contiguous())
        return torch.where(self.keys[places] == keys, places, -1)


def _level(keys: Tensor, weights: Tensor) -> _Level:
    last = torch.iinfo(torch.int64).max
    return _Level(
        torch.cat((keys, keys.new_full((1,), last))), torch.cat((weights, weights.new_zeros(1)))
    )
