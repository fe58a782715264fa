"""AoANet (Huang et al. 2019, "Attention on Attention for Image Captioning", arXiv:1908.06954).

Attention on attention gates what was attended to by the query. A refiner applies it to the regions,
a recurrent decoder to the context. Details are those of github.com/husthuaan/AoANet at 94ffe17, as
its train.sh sets them: layer norm first, no feed-forward and no output projection in the refiner;
the query beside the attended values is the layer's input, not its projection.
"""

import copy
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from a2cap.model.alignment import Alignment, DecoderPass, RegionProjection, scaled_product
from a2cap.model.attention.region_attention import attend
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput, EncoderDecoder, Sizes
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.recurrent_decoder import (
    RecurrentDecoder,
    RegionFeatures,
    lstm,
    mean_region,
)
from a2cap.model.layers import merge_heads, split_heads


class AttentionOnAttention(nn.Module):
    """Gated linear unit of the attended values and the query; its gate is the second half."""

    def __init__(self, width: int, *, dropout: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(2 * width, 2 * width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, attended: Tensor, query: Tensor) -> Tensor:
        """Return (..., D) from two of that shape."""
        joined = torch.cat((attended, query), dim=-1)
        return functional.glu(self.linear(self.dropout(joined)), dim=-1)


class RefiningLayer(nn.Module):
    """Self-attention over the regions with attention on attention, added to its input."""

    def __init__(self, config: AoaConfig):
        super().__init__()
        self.heads, self.attention_dropout = config.heads, config.attention_dropout
        self.norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.gate = AttentionOnAttention(config.width, dropout=config.gate_dropout)
        self.dropout = nn.Dropout(config.attention_dropout)

    def forward(self, states: Tensor, region_mask: Tensor) -> Tensor:
        """Refine states (B, R, D)."""
        normed = self.norm(states)
        parts = self.query_key_value(normed).chunk(3, dim=-1)
        queries, keys, values = (split_heads(part, self.heads) for part in parts)
        attended = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=region_mask[:, None, None, :],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        refined: Tensor = states + self.dropout(self.gate(merge_heads(attended), normed))
        return refined


class RegionRefiner(nn.Module):
    """Embedding of the region features and refining layers; boxes are unused."""

    def __init__(self, config: AoaConfig, *, feature_width: int):
        super().__init__()
        self.features = RegionFeatures(blind=config.blind)
        self.embedding = nn.Linear(feature_width, config.width)
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
        # copies of one layer: the authors' layers start with equal values
        layer = RefiningLayer(config)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(config.refiner_layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Refine (B, R, F) features -> (B, R, D)."""
        features = self.features(features, boxes, region_mask)
        states: Tensor = self.dropout(self.embedding(features).relu())
        for layer in self.layers:
            states = layer(states, region_mask)
        refined: Tensor = self.norm(states)
        return refined


class AoaDecoder(RecurrentDecoder):
    """LSTM whose state attends to the refined regions, gated by attention on attention."""

    def __init__(self, config: AoaConfig, *, vocabulary_size: int):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.gates = nn.Linear(3 * width, 4 * width)
        for parameter in self.gates.parameters():  # the range of torch's LSTMCell
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.gate = AttentionOnAttention(width)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(width, vocabulary_size)
        self.alignment: Alignment | None = None
        if config.alignment.fusion != "none":
            widths = {"region_width": width, "head_width": width // config.heads}
            self.alignment = Alignment(
                config.alignment, hidden_width=width, heads=config.heads, **widths
            )

    def project(self, states: Tensor, region_mask: Tensor) -> tuple[RegionProjection, ...]:
        """Project the refined regions for the attention."""
        keys, values = (
            split_heads(part, self.heads).contiguous()
            for part in self.key_value(states).chunk(2, dim=-1)
        )
        mask_keys = self.project_mask_keys(states)
        return (RegionProjection(keys, values, region_mask, *mask_keys),)

    def project_mask_keys(self, states: Tensor) -> tuple[Tensor | None, ...]:
        """Project the refined regions for the mask network, None without one."""
        return (None if self.alignment is None else self.alignment.mask_network.project(states),)

    def start(self, memory: Memory) -> Tensors:
        """Return the mean region, and a state, cell and context of 0."""
        mean = mean_region(memory)
        zeros = torch.zeros_like(mean)
        return (mean, zeros, zeros, zeros)

    def advance(
        self, embedded: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode one embedded token per row."""
        mean, state, cell, context = tensors
        regions = memory.projections[0]
        # the context of the step before enters beside the mean region
        inputs = torch.cat(
            (self.dropout(embedded.relu()), mean + self.dropout(context), state), dim=-1
        )
        state, cell = lstm(self.gates(inputs), cell)
        hidden = self.norm(state).reshape(len(memory), -1, state.shape[-1])  # -> (B, K, D)
        queries = split_heads(self.query(hidden), self.heads)
        attended, attention = attend(
            scaled_product(
                queries,
                regions.keys,
                scale=queries.shape[-1] ** -0.5,
                bias=decoder_pass.padding(regions.region_mask),
            ),
            regions,
            self.alignment,
            queries=queries,
            hidden=hidden,
            decoder_pass=decoder_pass,
        )
        # the query beside the attended values is the state before its norm
        context = self.gate(attended.transpose(1, 2).reshape(state.shape), state)
        tensors = (mean, state, cell, context)
        return DecoderOutput(self.dropout(context), (attention,)), tensors


class AoaCaptioner(EncoderDecoder):
    """Refined regions and the decoder."""

    decoder: AoaDecoder

    def __init__(self, config: AoaConfig, **sizes: Unpack[Sizes]):
        encoder = RegionRefiner(config, feature_width=sizes["feature_width"])
        decoder = AoaDecoder(config, vocabulary_size=sizes["vocabulary_size"])
        super().__init__(config, encoder, decoder, **sizes)
