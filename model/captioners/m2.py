"""The meshed-memory Transformer, M2 (Cornia et al. 2020, arXiv:1912.08226).

Its encoder attends to learned memory slots beside the regions; every decoder layer attends to every
encoder layer and weighs the results by learned gates. Details follow
github.com/aimagelab/meshed-memory-transformer at 239100b, with three differences. Its region mask
is computed from projected features, whose bias makes padding non-zero, so it masks nothing; a2
masks padding. Its sampled initial memory is overwritten by Xavier's initialisation, which a2 uses
from the start. Xavier's values overwrite its sinusoidal positions too, so that they are random
numbers: an imported captioner keeps that table.
"""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    DecoderPass,
    RegionProjection,
    scaled_product,
)
from a2cap.model.attention.multi_head import SelfAttention
from a2cap.model.attention.region_attention import attend
from a2cap.model.captioner import Memory
from a2cap.model.captioners.cached_decoder import CachedDecoder
from a2cap.model.captioners.encoder_decoder import DecoderOutput, EncoderDecoder, Sizes
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.recurrent_decoder import RegionFeatures
from a2cap.model.kv_cache import KVCache
from a2cap.model.layers import (
    MAX_POSITIONS,
    FeedForward,
    merge_heads,
    require_positions,
    sinusoidal_positions,
    split_heads,
    xavier_linear,
)


class MemoryLayer(nn.Module):
    """Self-attention over regions and learned memory slots, then a feed-forward block; post-LN."""

    def __init__(self, config: M2Config):
        super().__init__()
        self.heads, self.attention_dropout = config.heads, config.attention_dropout
        self.query_key_value = xavier_linear(config.width, config.width, parts=3)
        self.memory_keys = nn.Parameter(torch.empty(config.memory_slots, config.width))
        self.memory_values = nn.Parameter(torch.empty(config.memory_slots, config.width))
        nn.init.xavier_uniform_(self.memory_keys)
        nn.init.xavier_uniform_(self.memory_values)
        self.output = xavier_linear(config.width, config.width)
        self.attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width, config.feed_forward, dropout=config.dropout)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor, region_mask: Tensor) -> Tensor:
        """Attend over the existing regions and the memory; (B, R, D) -> (B, R, D)."""
        slots, width = self.memory_keys.shape
        queries, keys, values = self.query_key_value(states).chunk(3, dim=-1)
        batch = len(states)
        # the factors keep the memory at the size of projected regions
        memory_keys = math.sqrt(width // self.heads) * self.memory_keys
        memory_values = math.sqrt(slots) * self.memory_values
        # (B, R, D) and (slots, D) -> (B, R + slots, D)
        keys = torch.cat((keys, memory_keys.expand(batch, -1, -1).to(keys.dtype)), dim=1)
        values = torch.cat((values, memory_values.expand(batch, -1, -1).to(values.dtype)), dim=1)
        # the memory is visible to every image, also to one with padding
        is_visible = torch.cat((region_mask, region_mask.new_ones(batch, slots)), dim=1)
        attended = nn.functional.scaled_dot_product_attention(
            split_heads(queries, self.heads),
            split_heads(keys, self.heads),
            split_heads(values, self.heads),
            attn_mask=is_visible[:, None, None, :],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        added = self.dropout(self.output(merge_heads(attended)))
        states = self.attention_norm(states + added)
        encoded: Tensor = self.feed_forward_norm(states + self.dropout(self.feed_forward(states)))
        return encoded


class MemoryEncoder(nn.Module):
    """Region embedding and memory layers; boxes are unused."""

    def __init__(self, config: M2Config, *, feature_width: int):
        super().__init__()
        self.features = RegionFeatures(blind=config.blind)
        self.embedding = xavier_linear(feature_width, config.width)
        self.dropout = nn.Dropout(config.region_dropout(config.dropout))
        self.norm = nn.LayerNorm(config.width)
        self.layers = nn.ModuleList(MemoryLayer(config) for _ in range(config.encoder_layers))

    def forward(self, features: Tensor, boxes: Tensor, region_mask: Tensor) -> Tensor:
        """Encode (B, R, F) features; return every layer's output side by side, (B, R, layers D)."""
        features = self.features(features, boxes, region_mask)
        states = self.norm(self.dropout(self.embedding(features).relu()))
        outputs: list[Tensor] = []
        for layer in self.layers:
            states = layer(states, region_mask)
            outputs.append(states)
        return torch.cat(outputs, dim=-1)  # -> (B, R, layers D)


class MeshedLayer(nn.Module):
    """Causal self-attention, gated attention to every encoder layer, feed-forward block; post-LN.

    The attention has one set of weights for all encoder layers, and a mask network for each.
    """

    def __init__(self, config: M2Config, *, aligned: bool):
        super().__init__()
        width, levels = config.width, config.encoder_layers
        self.heads = config.heads
        self.self_attention = SelfAttention(
            width, config.heads, causal=True, dropout=config.attention_dropout
        )
        self.self_attention_norm = nn.LayerNorm(width)
        self.query = xavier_linear(width, width)
        self.key_value = xavier_linear(width, width, parts=2)
        self.output = xavier_linear(width, width)
        self.cross_attention_norm = nn.LayerNorm(width)
        # the only weights of their own that the levels have, beside their masks
        self.gates = nn.ModuleList(xavier_linear(2 * width, width) for _ in range(levels))
        self.feed_forward = FeedForward(width, config.feed_forward, dropout=config.dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        widths = {"hidden_width": width, "region_width": width, "head_width": width // self.heads}
        self.alignments = nn.ModuleList(
            Alignment(config.alignment, heads=config.heads, **widths)
            for _ in range(levels if aligned else 0)
        )

    def alignment(self, level: int) -> Alignment | None:
        """Return the alignment of the attention to an encoder layer, None if it is not aligned."""
        alignment: Alignment | None = self.alignments[level] if len(self.alignments) else None  # type: ignore[assignment]
        return alignment

    def add_self_attended(self, states: Tensor, attended: Tensor) -> Tensor:
        """Finish the self-attention block; (N, L, D) each."""
        summed: Tensor = self.self_attention_norm(states + self.dropout(attended))
        return summed

    def mesh(
        self, states: Tensor, levels: Sequence[RegionProjection], decoder_pass: DecoderPass
    ) -> tuple[Tensor, list[AlignedAttention]]:
        """Attend to every encoder layer, then apply the feed-forward block.

        states: (N, L, D), the K rows of an image next to each other. Returns such states and the
        attention over the K * L positions of each image.
        """
        # (N, L, D) -> (B, K * L, D)
        read = states.reshape(len(levels[0].region_mask), -1, states.shape[-1])
        queries = split_heads(self.query(read), self.heads)
        padding = decoder_pass.padding(levels[0].region_mask)
        scale = queries.shape[-1] ** -0.5
        meshed, attention = torch.zeros_like(states), []
        for number, (gate, regions) in enumerate(zip(self.gates, levels, strict=True)):
            attended, weights = attend(
                scaled_product(queries, regions.keys, scale=scale, bias=padding),
                regions,
                self.alignment(number),
                queries=queries,
                hidden=read,
                decoder_pass=decoder_pass,
            )
            attended = self.output(merge_heads(attended))
            added = self.dropout(attended).view_as(states)  # (B, K * L, D) -> (N, L, D)
            context = self.cross_attention_norm(states + added)
            share = gate(torch.cat((states, context), dim=-1)).sigmoid()
            meshed = meshed + share * context / math.sqrt(len(levels))
            attention.append(weights)
        # no residual around the mesh: each context contains its own
        transformed = self.dropout(self.feed_forward(meshed))
        return self.feed_forward_norm(meshed + transformed), attention


class MeshedDecoder(CachedDecoder):
    """Embedding, meshed layers and output layer without bias; a `Decoder`."""

    def __init__(self, config: M2Config, *, vocabulary_size: int):
        super().__init__()
        self.levels = config.encoder_layers
        self.embedding = nn.Embedding(vocabulary_size, config.width)
        nn.init.xavier_uniform_(self.embedding.weight)
        self.positions: Tensor
        # the first token has position 1: 0 is that of padding
        positions = sinusoidal_positions(MAX_POSITIONS + 1, config.width)[1:]
        is_saved = config.positions == "table"
        self.register_buffer("positions", positions, persistent=is_saved)
        self.layers: Sequence[MeshedLayer] = nn.ModuleList(  # type: ignore[assignment]
            MeshedLayer(config, aligned=config.alignment.includes(number))
            for number in range(1, config.decoder_layers + 1)
        )
        self.output = nn.Linear(config.width, vocabulary_size, bias=False)
        nn.init.xavier_uniform_(self.output.weight)

    def project(self, states: Tensor, region_mask: Tensor) -> tuple[RegionProjection, ...]:
        """Project every encoder layer's output for every decoder layer, decoder layer by layer."""
        projections = []
        mask_keys = iter(self.project_mask_keys(states))
        for layer in self.layers:
            for level in states.chunk(self.levels, dim=-1):
                keys, values = (
                    split_heads(part, layer.heads).contiguous()
                    for part in layer.key_value(level).chunk(2, dim=-1)
                )
                projections.append(RegionProjection(keys, values, region_mask, next(mask_keys)))
        return tuple(projections)

    def project_mask_keys(self, states: Tensor) -> tuple[Tensor | None, ...]:
        """Project for every mask network, None without one, in the order of `project`."""
        keys: list[Tensor | None] = []
        for layer in self.layers:
            for number, level in enumerate(states.chunk(self.levels, dim=-1)):
                alignment = layer.alignment(number)
                keys.append(None if alignment is None else alignment.mask_network.project(level))
        return tuple(keys)

    def forward(self, tokens: Tensor, memory: Memory, decoder_pass: DecoderPass) -> DecoderOutput:
        """Decode whole captions, (N, L) int64."""
        require_positions(tokens.shape[1])
        states = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        attention: list[AlignedAttention] = []
        for number, layer in enumerate(self.layers):
            attended = layer.self_attention(states)
            states = layer.add_self_attended(states, attended)
            states, weights = layer.mesh(states, self._of_layer(memory, number), decoder_pass)
            attention += weights
        return DecoderOutput(states, tuple(attention))

    def advance(
        self, tokens: Tensor, cache: KVCache, memory: Memory, decoder_pass: DecoderPass
    ) -> DecoderOutput:
        """Decode the next token of each row and fill its slots of the cache."""
        states = self.embedding(tokens[:, None]) + self.positions.index_select(0, cache.position)
        attention: list[AlignedAttention] = []
        for number, layer in enumerate(self.layers):
            attended = layer.self_attention.step(states, cache, number)
            states = layer.add_self_attended(states, attended)
            states, weights = layer.mesh(states, self._of_layer(memory, number), decoder_pass)
            attention += weights
        return DecoderOutput(states.squeeze(1), tuple(attention))

    def _of_layer(self, memory: Memory, number: int) -> tuple[RegionProjection, ...]:
        return memory.projections[number * self.levels : (number + 1) * self.levels]


class M2Captioner(EncoderDecoder):
    """Memory encoder and meshed decoder."""

    decoder: MeshedDecoder

    def __init__(self, config: M2Config, **sizes: Unpack[Sizes]):
        encoder = MemoryEncoder(config, feature_width=sizes["feature_width"])
        decoder = MeshedDecoder(config, vocabulary_size=sizes["vocabulary_size"])
        super().__init__(config, encoder, decoder, **sizes)
