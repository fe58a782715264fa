"""GRU captioner with dot, general or additive attention, or without (Luong 2015; Bahdanau 2015).

The equations come from a blog on attention in captioning, January 2020, which does not say where
the context enters. `order: text` concatenates it with the state before the output layer (Luong);
`order: bahdanau` feeds it to the GRU before the state.
"""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass
from a2cap.model.attention.region_attention import SingleHeadAttention
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, EncoderDecoder, Sizes
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    RecurrentDecoder,
    RegionFeatures,
    mean_region,
)


class LinearRegions(nn.Module):
    """Encoder h_i = x_i W_e + b_e of region features; boxes are unused."""

    def __init__(self, config: GruConfig, *, feature_width: int):
        super().__init__()
        self.features = RegionFeatures(blind=config.blind, dropout=config.region_dropout())
        self.projection = nn.Linear(feature_width, config.width)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Project (B, R, F) features -> (B, R, D)."""
        states: Tensor = self.projection(self.features(features, boxes, region_mask))
        return states


class GruDecoder(RecurrentDecoder):
    """GRU, attention by its state, and output layer."""

    def __init__(self, config: GruConfig, *, vocabulary_size: int):
        super().__init__()
        width = config.width
        self.is_luong = config.attention != "none" and config.order == "text"
        self.embedding = nn.Embedding(vocabulary_size, config.embedding)
        self.attention = None if config.attention == "none" else _attention(config)
        inputs = config.embedding + (0 if self.is_luong else width)
        self.cell = nn.GRUCell(inputs, width)
        self.initial = nn.Linear(width, width) if config.initial == "mean" else None
        self.output = nn.Linear(2 * width if self.is_luong else width, vocabulary_size)

    def start(self, memory: Memory) -> Tensors:
        """Return the GRU's state and the mean region, which is read without attention."""
        mean = mean_region(memory)
        state = torch.zeros_like(mean) if self.initial is None else self.initial(mean).tanh()
        return (state, mean)

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        state, mean = tensors
        context = mean
        attention: tuple[AlignedAttention, ...] = ()
        if self.is_luong:
            state = self.cell(embedded, state)
        if self.attention is not None:
            context, weights = self.attention(state, memory.projections[0], decoder_pass)
            attention = (weights,)
        if not self.is_luong:
            state = self.cell(torch.cat((embedded, context), dim=-1), state)
        states = torch.cat((context, state), dim=-1) if self.is_luong else state
        return DecoderOutput(states, attention), (state, mean)


def _attention(config: GruConfig) -> SingleHeadAttention:
    width, is_additive = config.width, config.attention == "additive"
    key = nn.Linear(width, width, bias=False) if is_additive else nn.Identity()
    query = nn.Identity() if config.attention == "dot" else nn.Linear(width, width, bias=False)
    return SingleHeadAttention(
        key,
        query,
        additive=is_additive,
        scale=1 / math.sqrt(width) if config.scale == "sqrt" else 1.0,
        width=width,
        hidden_width=width,
        region_width=width,
        alignment=config.alignment,
    )


class GruCaptioner(EncoderDecoder):
    """Projected regions and the GRU."""

    decoder: GruDecoder

    def __init__(self, config: GruConfig, **sizes: Unpack[Sizes]):
        encoder = LinearRegions(config, feature_width=sizes["feature_width"])
        decoder = GruDecoder(config, vocabulary_size=sizes["vocabulary_size"])
        super().__init__(config, encoder, decoder, **sizes)
