"""Computation of the tokens of a batch without the padding of its captions.

Four of ten positions are padding where ten images of COCO have five captions each. Linear layers,
norms and dropout treat each token alone and run on the tokens of all captions one after the other;
attention reads them in rows, by caption or by image.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Tokens in padded rows.

    positions: (T,) int64, of each token in the flattened rows, ascending; sources: (M,) int64, the
    token at each position of the flattened rows, the last one on padding; shape: rows and their
    length.
    """

    positions: Tensor
    sources: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, positions: Tensor, shape: tuple[int, int]) -> "Rows":
        """Find the token at each position."""
        numbers = torch.ones_like(positions).cumsum(0) - 1
        sources = positions.new_full((shape[0] * shape[1],), len(positions) - 1)
        return cls(positions, sources.index_copy_(0, positions, numbers), shape)

    def pad(self, states: Tensor) -> Tensor:
        """Return states (T, D) in rows, (rows, length, D); padding repeats the last token."""
        return states.index_select(0, self.sources).view(*self.shape, states.shape[-1])

    def pad_flags(self, flags: Tensor) -> Tensor:
        """Return flags (T,) bool in rows, (rows, length), False on padding."""
        padded = flags.new_zeros(len(self.sources)).index_copy_(0, self.positions, flags)
        return padded.view(self.shape)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the states (T, D) of rows (rows, length, D)."""
        return padded.flatten(0, 1).index_select(0, self.positions)


@dataclass(frozen=True)
class Packing:
    """The T tokens of B images with K captions each, of at most L tokens.

    by_caption: in B * K rows of L; by_image: in B rows, whose tokens are next to each other.
    """

    by_caption: Rows
    by_image: Rows

    @classmethod
    def of(cls, captions: Sequence[int], positions: Tensor) -> "Packing":
        """Return the packing of captions of shape (B, K, L).

        positions: (T,) int64, of the tokens in the flattened captions, T > 0.
        """
        images, per_image, length = captions
        of_image = positions // (per_image * length)
        counts = positions.new_zeros(images).index_add(0, of_image, torch.ones_like(of_image))
        longest = int(counts.max())
        first = (counts.cumsum(0) - counts).index_select(0, of_image)
        number = torch.ones_like(positions).cumsum(0) - 1
        by_image = of_image * longest + number - first
        return cls(
            Rows.of(positions, (images * per_image, length)),
            Rows.of(by_image, (images, longest)),
        )

    def inputs(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (T,) of (B * K, L), and their positions (T, D) of (L, D)."""
        found, length = self.by_caption.positions, self.by_caption.shape[1]
        return tokens.flatten().index_select(0, found), positions.index_select(0, found % length)


def by_image(states: Tensor, images: int, packing: Packing | None) -> Tensor:
    """Return the states of all captions of an image in one row, (B, Q, D).

    states: (N, L, D), the K rows of an image next to each other, or (T, D) with a packing.
    """
    if packing is None:
        return states.reshape(images, -1, states.shape[-1])
    return packing.by_image.pad(states)


def from_images(rows: Tensor, states: Tensor, packing: Packing | None) -> Tensor:
    """Return such rows, (B, Q, D), in the shape of the states that they were made from."""
    return rows.reshape(states.shape) if packing is None else packing.by_image.pack(rows)
