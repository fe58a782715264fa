"""The one interface of every captioner: encode an image once, advance one step, show attention.

Beam search, sampling, self-critical training, reports and analysis use only what stands here, so
that Transformer, LSTM and GRU captioners can take each other's place.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from a2cap.model.alignment import AlignedAttention
from a2cap.model.attention.multi_head import RegionProjection
from a2cap.model.layers.kv_cache import WordStore

if TYPE_CHECKING:
    from a2cap.model.captioners.transformer.decoder import CaptionDecoder


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a meaning of their own, as every vocabulary of this project has them."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


@dataclass(frozen=True)
class Memory:
    """What a captioner keeps of B images.

    states: (B, R, D), the encoder's output; region_mask: (B, R) bool;
    projections: of the states, one per attention layer, shared by all captions of an image.
    members: what each captioner of an ensemble keeps.
    """

    states: Tensor
    region_mask: Tensor
    projections: tuple[RegionProjection, ...]
    members: tuple["Memory", ...] = ()

    def __len__(self) -> int:
        return len(self.region_mask)


@dataclass(frozen=True)
class DecoderState:
    """Everything that the next step needs; a step returns a new one and changes none.

    cached: tensors of which the first axis is the N = B * rows_per_image rows, the rows of a
    image together (places of its words for a Transformer, h and c for an LSTM).
    stores: what the rows of an image share, a Transformer's keys and values, one per layer.
    decoder: a Transformer's, prepared for so many rows; its weights must stay as they are.
    members: the states of an ensemble's captioners.
    """

    memory: Memory
    rows_per_image: int
    cached: tuple[Tensor, ...] = ()
    stores: tuple[WordStore, ...] = ()
    decoder: "CaptionDecoder | None" = None
    members: tuple["DecoderState", ...] = ()

    def reordered(self, index: Tensor) -> "DecoderState":
        """The state with row index[i] at row i; index: (N,) int64, each within its own image."""
        return replace(self, cached=tuple(values.index_select(0, index) for values in self.cached))


@dataclass(frozen=True)
class StepAttention:
    """Attention of one step over the regions, averaged over layers and heads.

    original, aligned: (N, R) float; aligned rows sum to more than 1 unless they are renormalised.
    keep: (N, R) in (0, 1), the mask m (1 on padding), averaged over the aligned layers, or None.
    gate: (N, R), 1 where the fusion leaves the attention as it is, or None without a gate.
    layers: the same per layer and head, (N, H, R) each, the gate (N, H, 1); the lowest layer first.
    """

    original: Tensor
    aligned: Tensor
    keep: Tensor | None
    gate: Tensor | None
    layers: tuple[AlignedAttention, ...]


@dataclass(frozen=True)
class StepOutput:
    """log_probs: (N, V) float of the next token; attention: where it was asked for."""

    log_probs: Tensor
    attention: StepAttention | None
    state: DecoderState


class Captioner(Protocol):
    """A captioner, whatever it is made of."""

    special: SpecialTokens
    vocabulary_size: int

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Looks at B images once.

        features: (B, R, F) float; boxes: (B, R, 5) float, x1, y1, x2, y2 and share of the area,
        all in [0, 1]; region_mask: (B, R) bool.
        """

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """The state before the first token, with rows_per_image rows for each image."""

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Takes one token per row, (N,) int64, <bos> first, and predicts the next one."""

    def reorder(self, state: DecoderState, index: Tensor) -> DecoderState:
        """The state with row index[i] at row i; index: (N,) int64, each within its own image."""

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Teacher forcing: log-probabilities (B, K, L, V) of the token after each of (B, K, L)."""


def decoder_input(captions: Tensor, *, bos: int) -> Tensor:
    """What a decoder is fed to predict captions, which have no <bos>: (..., L) -> (..., L)."""
    first = torch.full_like(captions[..., :1], bos)
    return torch.cat((first, captions[..., :-1]), dim=-1)


def summarise(layers: tuple[AlignedAttention, ...]) -> StepAttention:
    """Averages over layers and heads; layers: attention of one step, (N, H, R) each."""
    keeps = [layer.keep for layer in layers if layer.keep is not None]
    gates = [layer.gate for layer in layers if layer.gate is not None]
    original = torch.stack([layer.original for layer in layers], dim=1)
    return StepAttention(
        original=original.mean(dim=(1, 2)),
        aligned=torch.stack([layer.used for layer in layers], dim=1).mean(dim=(1, 2)),
        keep=torch.stack(keeps, dim=1).mean(dim=(1, 2)) if keeps else None,
        gate=torch.stack(gates, dim=1).mean(dim=(1, 2)).expand(-1, original.shape[-1])
        if gates
        else None,
        layers=layers,
    )


@torch.no_grad()
def attend(captioner: Captioner, memory: Memory, captions: Tensor) -> list[StepAttention]:
    """Attention while each word of one given caption per image is predicted.

    captions: (B, L) int64, without <bos>, padded after the end. Returns L entries, the one at
    position t being the attention from which token t was predicted.
    """
    state = captioner.start(memory, rows_per_image=1)
    steps: list[StepAttention] = []
    for tokens in decoder_input(captions, bos=captioner.special.bos).unbind(dim=1):
        output = captioner.step(tokens, state, attention=True)
        state = output.state
        if output.attention is not None:
            steps.append(output.attention)
    return steps
