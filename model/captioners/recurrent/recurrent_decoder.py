"""What recurrent captioners share: unchanged regions, and teacher forcing token by token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass, RegionProjection, at_least_float32
from a2cap.model.attention.region_attention import SingleHeadAttention
from a2cap.model.captioner import DecoderState, Memory, Tensors
from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.captioners.encoder_decoder import Decoder, DecoderOutput, EncoderDecoder, Sizes


class RegionFeatures(nn.Module):
    """Encoder that only drops values of the features, 0 on padding; boxes are unused."""

    def __init__(self, *, blind: bool, dropout: float = 0.0):
        super().__init__()
        self.blind = blind
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Return (B, R, F) features, all 0 for a blind captioner."""
        hidden = ~region_mask[..., None] | self.blind
        kept: Tensor = self.dropout(at_least_float32(features).masked_fill(hidden, 0))
        return kept


class FeatureCaptioner(EncoderDecoder):
    """Region features and a decoder that reads them as they are; make: class of the decoder."""

    def __init__(
        self, config: CaptionerSettings, make: Callable[..., Decoder], **sizes: Unpack[Sizes]
    ):
        encoder = RegionFeatures(blind=config.blind, dropout=config.region_dropout())
        widths = {name: sizes[name] for name in ("feature_width", "vocabulary_size")}
        super().__init__(config, encoder, make(config, **widths), **sizes)

    @property
    def state_width(self) -> int:
        """Width of the features."""
        return self.feature_width


def mean_region(memory: Memory) -> Tensor:
    """Average the existing regions of each image; -> (B, F)."""
    exists = memory.region_mask[..., None]
    # padding is 0 already, but would get a gradient, which analyses read
    return memory.states.masked_fill(~exists, 0).sum(dim=1) / exists.sum(dim=1)


class RecurrentDecoder(nn.Module):
    """Base of decoders that advance token by token; a subclass adds the rest of `Decoder`.

    Each pass has a recurrence of its own: the states of the perturbed pass are perturbed, and its
    loss reaches the masks of earlier tokens through them.
    """

    # without a value: a class attribute would hide the module of that name
    attention: SingleHeadAttention | None
    embedding: nn.Embedding

    def project(self, states: Tensor, region_mask: Tensor) -> tuple[RegionProjection, ...]:
        """Project the regions for the attention, if there is one."""
        return () if self.attention is None else (self.attention.project(states, region_mask),)

    def project_mask_keys(self, states: Tensor) -> tuple[Tensor | None, ...]:
        """Project the regions for its mask network, None without one."""
        return () if self.attention is None else (self.attention.project_mask_keys(states),)

    def forward(self, tokens: Tensor, memory: Memory, decoder_pass: DecoderPass) -> DecoderOutput:
        """Decode whole captions, (N, L) int64, step by step."""
        rows_per_image = len(tokens) // len(memory)
        tensors = tuple(t.repeat_interleave(rows_per_image, dim=0) for t in self.start(memory))
        outputs: list[DecoderOutput] = []
        # at once: each lookup has a gradient of the size of the vocabulary
        for column in self.embed(tokens).unbind(dim=1):
            output, tensors = self.advance(column, tensors, memory, decoder_pass)
            outputs.append(output)
        states = torch.stack([output.states for output in outputs], dim=1)
        layers = zip(*(output.attention for output in outputs), strict=True)
        joined = (AlignedAttention.stacked(steps, dim=3) for steps in layers)  # (B, H, K, L, R)
        return DecoderOutput(
            states, tuple(layer.each(lambda v: v.flatten(2, 3)) for layer in joined)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens of any shape."""
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def start(self, memory: Memory) -> Tensors:
        """Return the state before the first token, tensors of B images."""
        raise NotImplementedError

    def step(
        self, tokens: Tensor, state: DecoderState, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, DecoderState]:
        """Decode one token per row, (N,) int64."""
        embedded = self.embed(tokens)
        output, tensors = self.advance(embedded, state.tensors, state.memory, decoder_pass)
        return output, replace(state, tensors=tensors)

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        raise NotImplementedError


def lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next state and cell, (N, D) each, from gates (N, 4 D) before their activation.

    The gates are input, forget, output and candidate, a sum of linear layers of the inputs; without
    peepholes (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
    """
    enter, forget, leave, candidate = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell
