"""The interface of every captioner: encode an image once, advance one step, report attention.

Beam search, sampling, self-critical training, reports and analysis use only this interface, so that
Transformer, LSTM and GRU captioners are interchangeable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from a2cap.model.alignment import AlignedAttention, RegionProjection
from a2cap.model.kv_cache import KVCache

Tensors = tuple[Tensor, ...]
"""State of a decoder between tokens; each kind has its own parts."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


@dataclass(frozen=True)
class Memory:
    """Encoded form of B images.

    states: (B, R, D), output of the encoder.
    region_mask: (B, R) bool, True where a region exists.
    projections: of the states, one per attention layer, shared by all captions of an image.
    members: memories of the captioners of an ensemble.
    """

    states: Tensor
    region_mask: Tensor
    projections: tuple[RegionProjection, ...]
    members: tuple["Memory", ...] = ()

    def __len__(self) -> int:
        return len(self.region_mask)

    def select(self, images: Tensor) -> "Memory":
        """Return that of some images; images: int64, positions in the batch."""
        return Memory(
            self.states[images],
            self.region_mask[images],
            tuple(layer.select(images) for layer in self.projections),
            tuple(member.select(images) for member in self.members),
        )


@dataclass(frozen=True)
class DecoderState:
    """State of a decoder between two steps; a step returns a new state and leaves the old one.

    memory: of the B images.
    rows_per_image: K.
    members: states of the captioners of an ensemble.
    tensors: contents known to the captioner alone, such as h and c of an LSTM; the first axis of
        each is the N = B * K rows, those of an image next to each other.
    cache: of a Transformer, None before the first token.
    """

    memory: Memory
    rows_per_image: int
    tensors: Tensors = ()
    members: tuple["DecoderState", ...] = ()
    cache: KVCache | None = None

    def reorder(self, index: Tensor) -> "DecoderState":
        """Return rows index[i], the same number for each image; index: int64, image by image."""
        return replace(
            self,
            rows_per_image=len(index) // len(self.memory),
            tensors=tuple(values.index_select(0, index) for values in self.tensors),
            members=tuple(member.reorder(index) for member in self.members),
            cache=None
            if self.cache is None
            else self.cache.reorder(index, images=len(self.memory)),
        )

    def select(self, images: Tensor) -> "DecoderState":
        """Keep the rows of some images; images: int64, positions in the batch."""
        rows = torch.arange(self.rows_per_image, device=images.device)
        rows = (images[:, None] * self.rows_per_image + rows).flatten()
        return DecoderState(
            self.memory.select(images),
            self.rows_per_image,
            tuple(values.index_select(0, rows) for values in self.tensors),
            tuple(member.select(images) for member in self.members),
            None if self.cache is None else self.cache.select(rows),
        )


@dataclass(frozen=True)
class StepAttention:
    """Attention of one step over the regions, averaged over layers and heads.

    original, aligned: (N, R) float; aligned rows sum to more than 1 unless they are renormalised.
    keep: (N, R) in (0, 1), the mask m (1 on padding), averaged over the aligned layers, or None.
    gate: (N, R), 1 where the fusion keeps the original attention, or None without a gate.
    layers: the same per layer and head, (N, H, R) each, the gate (N, H, 1); lowest layer first.
    """

    original: Tensor
    aligned: Tensor
    keep: Tensor | None
    gate: Tensor | None
    layers: tuple[AlignedAttention, ...]


@dataclass(frozen=True)
class StepOutput:
    """Result of one step.

    log_probs: (N, V) float of the next token; attention: None unless requested.
    """

    log_probs: Tensor
    attention: StepAttention | None
    state: DecoderState


@dataclass(frozen=True)
class ScoredCaptions:
    """Log-probabilities of given captions and the attention of each layer.

    log_probs: (B, K, L) float, of each token given those before it, 0 on padding.
    attention: one per layer, over the Q = K * L positions of an image.
    penalties: further losses of theta by name, scalars per token; none in the perturbed pass.
    """

    log_probs: Tensor
    attention: tuple[AlignedAttention, ...]
    penalties: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Teaching:
    """Deviations from plain teacher forcing.

    inputs: (B, K, L) int64, <bos> first, that the decoder reads in place of the captions.
    label_smoothing: share of the target that is uniform over the vocabulary (Szegedy et al. 2016,
    section 7); what it adds to the caption loss is the penalty of that name.
    positions: (T,) int64, positions of the tokens in the flattened captions. By default they are
    found, which waits for a GPU.
    targets: (B, K * L, R) float, regions that each word should attend to, for the penalty
    "supervision" of weight `supervision` (`supervision_penalty`).
    """

    inputs: Tensor | None = None
    label_smoothing: float = 0.0
    positions: Tensor | None = None
    targets: Tensor | None = None
    supervision: float = 0.0


PLAIN = Teaching()
"""Teacher forcing by the captions themselves."""


class CaptionModel(Protocol):
    """A captioner of any architecture."""

    special: SpecialTokens
    vocabulary_size: int

    def encode(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Memory:
        """Encode B images.

        features: (B, R, F) float.
        boxes: (B, R, 5) float, x1, y1, x2, y2 and share of the area, all in [0, 1].
        region_mask: (B, R) bool.
        """

    def start(self, memory: Memory, rows_per_image: int) -> DecoderState:
        """Create the state before the first token, with rows_per_image rows for each image."""

    def step(self, tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        """Predict the next token after one token per row, (N,) int64, <bos> first."""

    def forward(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return log-probabilities (B, K, L, V) of the token after each of (B, K, L) int64."""


def decoder_input(captions: Tensor, *, bos: int) -> Tensor:
    """Shift captions right by one token, <bos> first; (..., L) -> (..., L)."""
    first = torch.full_like(captions[..., :1], bos)
    return torch.cat((first, captions[..., :-1]), dim=-1)


def average_attention(layers: tuple[AlignedAttention, ...]) -> StepAttention:
    """Average the attention of one step, (N, H, R) per layer, over layers and heads."""
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
def trace_attention(
    captioner: CaptionModel, memory: Memory, captions: Tensor
) -> list[StepAttention]:
    """Return the attention at each token of one given caption per image.

    captions: (B, L) int64, without <bos>, padded after the end. Returns L entries; entry t is the
    attention that predicts token t. Empty for a captioner without attention.
    """
    state = captioner.start(memory, rows_per_image=1)
    steps: list[StepAttention] = []
    for tokens in decoder_input(captions, bos=captioner.special.bos).unbind(dim=1):
        output = captioner.step(tokens, state, attention=True)
        state = output.state
        if output.attention is not None:
            steps.append(output.attention)
    return steps
