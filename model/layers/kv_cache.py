"""Keys and values of the words said so far, in a store that the rows of an image share.

A beam that forks would have to copy the past of the row that it takes. Here nothing is copied: each
step appends the keys and values of its K rows to one store per image and layer, and every row
knows the places of its own words in it (K, t), which is all that reordering has to move.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_WORDS = 20
"""Words that a store has room for at first; then it doubles."""


@dataclass
class _Room:
    """Storage (B, H, places, d) each, of which the first `filled` places are in use."""

    keys: Tensor
    values: Tensor
    filled: int

    def enlarged(self, used: int, places: int) -> "_Room":
        """A copy of the first `used` places, with room for `places`."""
        keys, values = (
            of.new_empty(*of.shape[:2], places, of.shape[3]) for of in (self.keys, self.values)
        )
        keys[:, :, :used] = self.keys[:, :, :used]
        values[:, :, :used] = self.values[:, :, :used]
        return _Room(keys, values, used)


class WordStore:
    """The keys and values of one layer, up to some step; appending leaves it as it is.

    Steps write into common storage one after another. A step from a state that another one has
    continued already writes into a copy, and one that takes gradients into tensors of its own.
    """

    def __init__(self, room: _Room, places: int) -> None:
        self._room = room
        self._places = places

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> "WordStore":
        """A store of the first K words of each image; keys, values: (B, H, K, d)."""
        places = keys.shape[2]
        room = _Room(keys, values, places)
        if not _takes_gradients(keys):
            room = room.enlarged(places, places * FIRST_WORDS)
        return cls(room, places)

    @property
    def keys(self) -> Tensor:
        """(B, H, t * K, d), those of a step together."""
        return self._room.keys[:, :, : self._places]

    @property
    def values(self) -> Tensor:
        """(B, H, t * K, d), as the keys."""
        return self._room.values[:, :, : self._places]

    def appended(self, keys: Tensor, values: Tensor) -> "WordStore":
        """A store with the next K words of each image; keys, values: (B, H, K, d)."""
        start, end = self._places, self._places + keys.shape[2]
        if _takes_gradients(keys):
            joined = (torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2))
            return WordStore(_Room(*joined, end), end)
        room = self._room
        # a tensor of inference mode cannot be written outside it
        if room.filled != start or room.keys.is_inference() != torch.is_inference_mode_enabled():
            room = room.enlarged(start, max(end, room.keys.shape[2]))
        elif end > room.keys.shape[2]:
            room = room.enlarged(start, 2 * end)
        room.keys[:, :, start:end] = keys
        room.values[:, :, start:end] = values
        room.filled = end
        return WordStore(room, end)


def _takes_gradients(keys: Tensor) -> bool:
    return torch.is_grad_enabled() and keys.requires_grad


def next_places(places: Tensor, rows_per_image: int) -> Tensor:
    """The places with those of the next word, (N, t) -> (N, t + 1)."""
    row, length = torch.arange(len(places), device=places.device), places.shape[1]
    added = row % rows_per_image + length * rows_per_image
    return torch.cat((places, added[:, None]), dim=1)


def visible_words(places: Tensor, rows_per_image: int) -> Tensor | None:
    """Which words of its image's stores are a row's own.

    Returns (B, 1, K, t * K) bool, or None where all are, which is so for one row per image.
    """
    if rows_per_image == 1:
        return None
    rows, length = places.shape
    is_own = torch.zeros(rows, length * rows_per_image, dtype=torch.bool, device=places.device)
    is_own.scatter_(1, places, True)
    return is_own.reshape(-1, 1, rows_per_image, length * rows_per_image)
