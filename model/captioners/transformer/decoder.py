"""Caption decoder of the Transformer (A2, section "Caption Decoder").

The K captions of an image share its projected regions: cross-attention folds them into the query
axis.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass, RegionProjection
from a2cap.model.attention.multi_head import CrossAttention, SelfAttention
from a2cap.model.captioner import Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput
from a2cap.model.layers import (
    MAX_POSITIONS,
    FeedForward,
    add_block,
    layer_norm,
    require_positions,
    sinusoidal_positions,
)


class TokenEmbedding(nn.Module):
    """Token embedding, N(0, 1/D) scaled by sqrt(D), plus sinusoidal positions.

    It shares no weights with the output layer (the paper leaves this open; M2 shares none either).
    """

    def __init__(self, *, vocabulary_size: int, width: int, dropout: float = 0.0):
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, width)  # named so in checkpoints
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.dropout = nn.Dropout(dropout)
        self.positions: Tensor
        self.register_buffer(
            "positions", sinusoidal_positions(MAX_POSITIONS, width), persistent=False
        )

    def forward(self, tokens: Tensor, *, first_position: int = 0) -> Tensor:
        """Map tokens to embeddings; (N, L) int64 from position first_position on -> (N, L, D).

        Raises ModelError beyond the last position.
        """
        end = first_position + tokens.shape[1]
        require_positions(end)
        positions = self.positions[first_position:end]
        embedded = torch.add(positions, self.words(tokens), alpha=self.scale)
        dropped: Tensor = self.dropout(embedded)
        return dropped


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention over regions, feed-forward block."""

    def __init__(
        self,
        self_attention: SelfAttention,
        cross_attention: CrossAttention,
        *,
        width: int,
        feed_forward: int,
        dropout: float = 0.0,
        pre: bool = False,
    ):
        super().__init__()
        self.pre = pre
        self.self_attention = self_attention
        self.self_attention_norm = layer_norm(width, pre=pre)
        self.cross_attention = cross_attention
        self.cross_attention_norm = layer_norm(width, pre=pre)
        self.feed_forward = FeedForward(width, feed_forward)
        self.feed_forward_norm = layer_norm(width, pre=pre)
        self.dropout = nn.Dropout(dropout)

    def self_attend(self, states: Tensor) -> Tensor:
        """Attend from each token to itself and those before it; (N, L, D) -> (N, L, D)."""
        pre, norm = self.pre, self.self_attention_norm
        attended = self.self_attention(norm(states) if pre else states)
        return add_block(states, self.dropout(attended), norm, pre=pre)

    def self_attend_step(self, states: Tensor, kv_cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend from the next token of each row to those before it; (N, 1, D) -> (N, 1, D)."""
        pre, norm = self.pre, self.self_attention_norm
        attended, kv_cache = self.self_attention.step(norm(states) if pre else states, kv_cache)
        return add_block(states, self.dropout(attended), norm, pre=pre), kv_cache

    def cross_attend(
        self, states: Tensor, regions: RegionProjection, decoder_pass: DecoderPass
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend from each token to the regions, then apply the feed-forward block.

        states: (N, L, D), the K rows of an image next to each other, or (1, L, D) if they are equal
        and K is 1. Returns (N, L, D) and the attention over the K * L positions of each image.
        """
        # the K captions of an image become queries of one attention, so that keys are not copied
        pre, norm, shape = self.pre, self.cross_attention_norm, states.shape
        read = norm(states) if pre else states
        if len(states) > 1:
            read = read.reshape(len(regions.region_mask), -1, shape[-1])
        attended, attention = self.cross_attention(read, regions, decoder_pass)
        attended = attended.view(-1, *shape[1:])
        states = add_block(states, self.dropout(attended), norm, pre=pre)
        norm = self.feed_forward_norm
        transformed = self.feed_forward(norm(states) if pre else states)
        return add_block(states, self.dropout(transformed), norm, pre=pre), attention


class CaptionDecoder(nn.Module):
    """Embedding, decoder layers and output layer; a `Decoder`."""

    def __init__(self, embedding: TokenEmbedding, layers: Iterable[DecoderLayer]):
        super().__init__()
        self.embedding = embedding
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        vocabulary_size, width = embedding.words.weight.shape
        # the last block is not normed where each norm is before its block
        is_pre = any(layer.pre for layer in self.layers)
        self.norm = layer_norm(width, pre=True) if is_pre else nn.Identity()
        self.output = nn.Linear(width, vocabulary_size)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def project(self, states: Tensor, region_mask: Tensor) -> tuple[RegionProjection, ...]:
        """Project the encoder's output, (B, R, D), for every layer."""
        attentions = (layer.cross_attention for layer in self.layers)
        return tuple(attention.project(states, region_mask) for attention in attentions)

    def project_mask_keys(self, states: Tensor) -> tuple[Tensor | None, ...]:
        """Project the encoder's output for every layer's mask network, None without one."""
        attentions = (layer.cross_attention for layer in self.layers)
        return tuple(attention.project_mask_keys(states) for attention in attentions)

    def start(self, memory: Memory) -> Tensors:
        """Return the empty KV caches before the first token."""
        return ()

    def forward(self, tokens: Tensor, memory: Memory, decoder_pass: DecoderPass) -> DecoderOutput:
        """Decode whole captions; tokens: (N, L) int64."""
        # rows expanded from one caption are equal until the first of them attends to its image
        is_one = tokens.stride(0) == 0 and len(tokens) == len(memory)
        states: Tensor = self.embedding(tokens[:1] if is_one else tokens)
        attention: list[AlignedAttention] = []
        for layer, regions in zip(self.layers, memory.projections, strict=True):
            states, weights = layer.cross_attend(layer.self_attend(states), regions, decoder_pass)
            attention.append(weights)
        return DecoderOutput(self.norm(states), tuple(attention))

    def step(
        self, tokens: Tensor, tensors: Tensors, memory: Memory, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, Tensors]:
        """Decode the next token of each row; tensors: the KV cache of each layer in turn."""
        position = tensors[0].shape[3] if tensors else 0
        states: Tensor = self.embedding(tokens[:, None], first_position=position)
        extended: list[Tensor] = []
        attention: list[AlignedAttention] = []
        for number, layer in enumerate(self.layers):
            states, kv_cache = layer.self_attend_step(states, tensors[number] if tensors else None)
            states, weights = layer.cross_attend(states, memory.projections[number], decoder_pass)
            extended.append(kv_cache)
            attention.append(weights)
        return DecoderOutput(self.norm(states).squeeze(1), tuple(attention)), tuple(extended)
