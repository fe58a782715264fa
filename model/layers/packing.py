"""Computation of the tokens of a batch without the padding of its captions.

Four of ten positions are padding where ten images of COCO have five captions each. Linear layers,
norms and dropout treat each token alone and run on the tokens of all captions one after the other;
attention reads them in rows, by caption or by image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Tokens in rows, with padding at places that no token has.

    places: (T,) int64, of each token in the flattened rows, ascending; tokens: (M,) int64, of each
    place in the flattened rows, T on padding; sources: the same with T - 1 on padding; shape: rows
    and their length.
    """

    places: Tensor
    tokens: Tensor
    sources: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, places: Tensor, shape: tuple[int, int]) -> "Rows":
        """Find the token of each place."""
        count = len(places)
        tokens = places.new_full((shape[0] * shape[1],), count)
        numbers = places.new_ones(count).cumsum(0) - 1
        tokens.index_copy_(0, places, numbers)
        return cls(places, tokens, tokens.clamp(max=count - 1), shape)

    def pad(self, states: Tensor) -> Tensor:
        """Lay states (T, D) in rows; padding is finite and without a gradient."""
        padded: Tensor = _Pad.apply(states, self.places, self.sources)
        return padded.view(*self.shape, states.shape[-1])

    def mark(self, flags: Tensor) -> Tensor:
        """Lay flags (T,) bool in rows, False on padding."""
        return flags.new_zeros(len(self.tokens)).index_copy(0, self.places, flags).view(self.shape)

    def pack(self, padded: Tensor) -> Tensor:
        """Return the states (T, D) of rows (rows, length, D)."""
        states: Tensor = _Pack.apply(padded.flatten(0, 1), self.places, self.tokens)
        return states


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
        places, length = self.by_caption.places, self.by_caption.shape[1]
        return tokens.flatten().index_select(0, places), positions.index_select(0, places % length)


def by_image(states: Tensor, images: int, packing: Packing | None) -> Tensor:
    """Lay the states of all captions of an image in one row, (B, Q, D).

    states: (N, L, D), the K rows of an image next to each other, or (T, D) with a packing.
    """
    if packing is None:
        return states.reshape(images, -1, states.shape[-1])
    return packing.by_image.pad(states)


def from_images(rows: Tensor, states: Tensor, packing: Packing | None) -> Tensor:
    """Return such rows, (B, Q, D), in the shape of the states that they were laid from."""
    return rows.reshape(states.shape) if packing is None else packing.by_image.pack(rows)


class _Pad(torch.autograd.Function):
    """Select the token of each place; its gradient is that of one place."""

    @staticmethod
    def forward(states: Tensor, places: Tensor, sources: Tensor) -> Tensor:
        # padding repeats the last token: attention of tokens never reads it
        return states.index_select(0, sources)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Pack(torch.autograd.Function):
    """Select the place of each token; the gradient of padding is 0."""

    @staticmethod
    def forward(padded: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
        return padded.index_select(0, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (tokens,) = ctx.saved_tensors
        # index_add, which torch would take, is several times as slow on a CPU
        with_zeros = torch.cat((gradient, gradient.new_zeros(1, gradient.shape[1])))
        return with_zeros.index_select(0, tokens), None, None
