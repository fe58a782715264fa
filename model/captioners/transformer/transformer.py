"""The A2 captioner (Fei, "Attention-Aligned Transformer for Image Captioning", AAAI 2022).

Visual encoder: linear, ReLU, dropout and LayerNorm on each region, then post-LN self-attention
layers, which may depend on the geometry of each pair of boxes. Every layer applies the region mask.
M2 (github.com/aimagelab/meshed-memory-transformer) computes its mask from projected features, whose
bias makes padding non-zero, so it masks nothing.

Caption decoder: the K captions of an image share its projected regions; cross-attention folds them
into the query axis.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass, RegionProjection
from a2cap.model.attention.multi_head import VASWANI, AttentionForm, CrossAttention, SelfAttention
from a2cap.model.attention.relational import PairEmbedding, RelationalAttention
from a2cap.model.captioner import Memory
from a2cap.model.captioners.cached_decoder import CachedDecoder
from a2cap.model.captioners.captioner_settings import LayeredSettings
from a2cap.model.captioners.encoder_decoder import BOX_VALUES, DecoderOutput, EncoderDecoder, Sizes
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.kv_cache import KVCache
from a2cap.model.layers import (
    MAX_POSITIONS,
    FeedForward,
    add_block,
    layer_norm,
    require_positions,
    sinusoidal_positions,
    xavier_linear,
)


class RegionEmbedding(nn.Module):
    """Embedding of each region's feature and, with a `box_geometry`, of its box."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.blind = config.blind
        self.feature = xavier_linear(feature_width, config.width)
        self.box: nn.Module | None = None
        if config.box_geometry == "linear":
            self.box = xavier_linear(BOX_VALUES, config.width)
        elif config.box_geometry == "relative":
            first, second = (xavier_linear(w, config.width) for w in (BOX_VALUES, config.width))
            self.box = nn.Sequential(first, nn.ReLU(), second)
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
        self.norm = nn.LayerNorm(config.width) if config.norm == "post" else nn.Identity()

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Project (B, R, F) features and (B, R, 5) boxes; region_mask: (B, R) -> (B, R, D)."""
        is_padding = ~region_mask[..., None]
        # Zero the padding now and do not only mask it later: 0 * NaN would spread to every sum.
        features = features.to(self.feature.weight.dtype).masked_fill(is_padding | self.blind, 0)
        states: Tensor = self.dropout(self.feature(features).relu())
        if self.box is not None:
            boxes = boxes.to(self.feature.weight.dtype).masked_fill(is_padding, 0)
            states = states + self.box(boxes)
        embedded: Tensor = self.norm(states)
        return embedded


class EncoderLayer(nn.Module):
    """Self-attention over the regions of an image, then a feed-forward block."""

    def __init__(
        self,
        attention: SelfAttention | RelationalAttention,
        *,
        width: int,
        feed_forward: int,
        dropout: float = 0.0,
        pre: bool = False,
    ):
        super().__init__()
        self.pre = pre
        self.attention = attention
        self.attention_norm = layer_norm(width, pre=pre)
        self.feed_forward = FeedForward(width, feed_forward)
        self.feed_forward_norm = layer_norm(width, pre=pre)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, region_mask: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Attend over the existing regions; (B, R, D) -> (B, R, D).

        region_mask: (B, R); pairs: embedded, (B, R, R, G), of relational attention.
        """
        pre, norm = self.pre, self.attention_norm
        read = norm(states) if pre else states
        if pairs is None:
            attended = self.attention(read, region_mask=region_mask)
        else:
            attended = self.attention(read, pairs, region_mask)
        states = add_block(states, self.dropout(attended), norm, pre=pre)
        norm = self.feed_forward_norm
        transformed = self.feed_forward(norm(states) if pre else states)
        return add_block(states, self.dropout(transformed), norm, pre=pre)


class RegionEncoder(nn.Module):
    """Region embedding and encoder layers."""

    def __init__(self, config: TransformerConfig, *, feature_width: int):
        super().__init__()
        self.embedding = RegionEmbedding(config, feature_width=feature_width)
        width, inner = config.width, config.feed_forward
        is_relational = config.box_geometry == "relative"
        attention = RelationalAttention if is_relational else SelfAttention
        self.layers = nn.ModuleList(
            EncoderLayer(
                attention(width, config.heads, dropout=config.attention_dropout),
                width=width,
                feed_forward=inner,
                dropout=config.dropout,
                pre=config.norm == "pre",
            )
            for _ in range(config.encoder_layers)
        )
        self.norm = layer_norm(width, pre=True) if config.norm == "pre" else nn.Identity()
        self.pairs = PairEmbedding() if is_relational and config.encoder_layers else None

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features and (B, R, 5) boxes; region_mask: (B, R) bool -> (B, R, D)."""
        states: Tensor = self.embedding(features, boxes, region_mask)
        pairs = None if self.pairs is None else self.pairs(boxes, region_mask)
        for layer in self.layers:
            states = layer(states, region_mask, pairs)
        encoded: Tensor = self.norm(states)
        return encoded


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

    def forward(self, tokens: Tensor, *, position: Tensor | None = None) -> Tensor:
        """Map tokens to embeddings; (N, L) int64 -> (N, L, D).

        position: (1,) int64, of one token per row; by default they are the first L. Raises
        ModelError for more tokens than positions.
        """
        require_positions(tokens.shape[1])
        positions = self.positions[: tokens.shape[1]]
        if position is not None:
            positions = self.positions.index_select(0, position)
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

    def self_attend_step(self, states: Tensor, cache: KVCache, number: int) -> Tensor:
        """Attend from the next token of each row to those before it; (N, 1, D) -> (N, 1, D)."""
        pre, norm = self.pre, self.self_attention_norm
        attended = self.self_attention.step(norm(states) if pre else states, cache, number)
        return add_block(states, self.dropout(attended), norm, pre=pre)

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
            read = read.reshape(len(regions.region_mask), -1, shape[-1])  # -> (B, K * L, D)
        attended, attention = self.cross_attention(read, regions, decoder_pass)
        attended = attended.view(-1, *shape[1:])  # (B, K * L, D) -> (N, L, D)
        states = add_block(states, self.dropout(attended), norm, pre=pre)
        norm = self.feed_forward_norm
        transformed = self.feed_forward(norm(states) if pre else states)
        return add_block(states, self.dropout(transformed), norm, pre=pre), attention


def decoder_layers(
    config: LayeredSettings,
    cross_attention: Callable[..., CrossAttention],
    *,
    form: AttentionForm = VASWANI,
    dropout: float = 0.0,
    pre: bool = False,
) -> Iterator[DecoderLayer]:
    """Yield the layers of a decoder; form: of their self-attention.

    cross_attention: makes that of one layer with its `alignment`, None where it has none.
    """
    for number in range(1, config.decoder_layers + 1):
        alignment = config.alignment if config.alignment.includes(number) else None
        attention = SelfAttention(
            config.width, config.heads, causal=True, form=form, dropout=config.attention_dropout
        )
        yield DecoderLayer(
            attention,
            cross_attention(alignment=alignment),
            width=config.width,
            feed_forward=config.feed_forward,
            dropout=dropout,
            pre=pre,
        )


class CaptionDecoder(CachedDecoder):
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

    def advance(
        self, tokens: Tensor, cache: KVCache, memory: Memory, decoder_pass: DecoderPass
    ) -> DecoderOutput:
        """Decode the next token of each row and fill its slots of the cache."""
        states: Tensor = self.embedding(tokens[:, None], position=cache.position)  # -> (N, 1, D)
        attention: list[AlignedAttention] = []
        for number, layer in enumerate(self.layers):
            states = layer.self_attend_step(states, cache, number)
            states, weights = layer.cross_attend(states, memory.projections[number], decoder_pass)
            attention.append(weights)
        return DecoderOutput(self.norm(states).squeeze(1), tuple(attention))


class TransformerCaptioner(EncoderDecoder):
    """Visual encoder and caption decoder with aligned cross-attention."""

    encoder: RegionEncoder
    decoder: CaptionDecoder

    def __init__(self, config: TransformerConfig, **sizes: Unpack[Sizes]):
        encoder = RegionEncoder(config, feature_width=sizes["feature_width"])
        embedding = TokenEmbedding(vocabulary_size=sizes["vocabulary_size"], width=config.width)
        attention = partial(CrossAttention, config.width, config.heads)
        pre = config.norm == "pre"
        layers = decoder_layers(config, attention, dropout=config.dropout, pre=pre)
        super().__init__(config, encoder, CaptionDecoder(embedding, layers), **sizes)
