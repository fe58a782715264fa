"""Caption decoder of the Transformer (A2, section "Caption Decoder").

The K captions of an image share its projected regions: cross-attention folds them into the query
axis.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass, RegionProjection
from a2cap.model.attention.multi_head import CrossAttention, SelfAttention
from a2cap.model.config import ModelConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers.dropout import Dropout
from a2cap.model.layers.feed_forward import FeedForward
from a2cap.model.layers.kv_cache import KVCache
from a2cap.model.layers.positions import MAX_POSITIONS, sinusoidal_positions


class TokenEmbedding(nn.Module):
    """Token embedding, N(0, 1/D) scaled by sqrt(D), plus sinusoidal positions.

    It shares no weights with the output layer (the paper leaves this open; M2 shares none either).
    """

    def __init__(self, *, vocabulary_size: int, width: int):
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, width)  # named so in checkpoints
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.positions: Tensor
        self.register_buffer(
            "positions", sinusoidal_positions(MAX_POSITIONS, width), persistent=False
        )

    def forward(self, tokens: Tensor, *, first_position: int = 0) -> Tensor:
        """Map tokens to embeddings; (N, L) int64 from position first_position on -> (N, L, D).

        Raises ModelError beyond the last position.
        """
        end = first_position + tokens.shape[1]
        if end > MAX_POSITIONS:
            raise ModelError(
                f"a caption has {end} tokens, the decoder has {MAX_POSITIONS} positions; "
                "shorten the captions"
            )
        embedded: Tensor = self.words(tokens) * self.scale + self.positions[first_position:end]
        return embedded


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention over regions, feed-forward block; post-LN."""

    def __init__(self, config: ModelConfig, *, aligned: bool):
        super().__init__()
        self.self_attention = SelfAttention(config.width, config.heads, causal=True)
        self.self_attention_norm = nn.LayerNorm(config.width)
        self.cross_attention = CrossAttention(
            config.width, config.heads, alignment=config.alignment if aligned else None
        )
        self.cross_attention_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width, config.feed_forward)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def self_attend(self, states: Tensor) -> Tensor:
        """Attend from each token to itself and those before it; (N, L, D) -> (N, L, D)."""
        return self._add_self_attended(states, self.self_attention(states))

    def self_attend_step(self, states: Tensor, cache: KVCache | None) -> tuple[Tensor, KVCache]:
        """Attend from the next token of each row to those before it; (N, 1, D) -> (N, 1, D)."""
        attended, cache = self.self_attention.step(states, cache)
        return self._add_self_attended(states, attended), cache

    def cross_attend(
        self,
        states: Tensor,
        regions: RegionProjection,
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> tuple[Tensor, AlignedAttention]:
        """Attend from each token to the regions, then apply the feed-forward block.

        states: (N, L, D), the K rows of an image next to each other. Returns (N, L, D) and the
        attention over the K * L positions of each image.
        """
        by_image = states.reshape(len(region_mask), -1, states.shape[-1])  # -> (B, K * L, D)
        attended, attention = self.cross_attention(
            by_image, regions, region_mask=region_mask, decoder_pass=decoder_pass
        )
        attended = attended.reshape(states.shape)
        states = self.cross_attention_norm(states + self.dropout(attended))
        transformed = self.feed_forward(states)
        states = self.feed_forward_norm(states + self.dropout(transformed))
        return states, attention

    def _add_self_attended(self, states: Tensor, attended: Tensor) -> Tensor:
        summed: Tensor = self.self_attention_norm(states + self.dropout(attended))
        return summed


@dataclass(frozen=True)
class DecoderOutput:
    """States (N, L, D) before the output layer, and the attention of each layer."""

    states: Tensor
    attention: tuple[AlignedAttention, ...]


class CaptionDecoder(nn.Module):
    """Embedding, decoder layers and output layer."""

    def __init__(self, config: ModelConfig, *, vocabulary_size: int):
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary_size=vocabulary_size, width=config.width)
        self.layers = nn.ModuleList(
            DecoderLayer(config, aligned=config.is_aligned(number))
            for number in range(1, config.decoder_layers + 1)
        )
        self.output = nn.Linear(config.width, vocabulary_size)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def cross_attentions(self) -> list[CrossAttention]:
        """Return the cross-attention of each layer, the lowest first."""
        return [layer.cross_attention for layer in self.layers]  # type: ignore[misc]

    def forward(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
        below_masks: DecoderOutput | None = None,
    ) -> DecoderOutput:
        """Decode whole captions (teacher forcing); tokens: (N, L) int64; regions: one per layer.

        below_masks: result of `decode_below_masks`, computed if it is None.
        """
        below = below_masks or self.decode_below_masks(
            tokens, regions, region_mask=region_mask, decoder_pass=decoder_pass
        )
        states, attention = below.states, list(below.attention)
        for number in range(len(below.attention), len(self.layers)):
            layer = self._layers()[number]
            if number > len(below.attention):
                states = layer.self_attend(states)
            states, weights = layer.cross_attend(
                states, regions[number], region_mask=region_mask, decoder_pass=decoder_pass
            )
            attention.append(weights)
        return DecoderOutput(states, tuple(attention))

    def decode_below_masks(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> DecoderOutput:
        """Decode up to the self-attention of the lowest aligned layer, equal in both passes."""
        states: Tensor = self.embedding(tokens)
        attention: list[AlignedAttention] = []
        for layer, projected in zip(self._layers(), regions, strict=True):
            states = layer.self_attend(states)
            if layer.cross_attention.alignment is not None:
                break
            states, weights = layer.cross_attend(
                states, projected, region_mask=region_mask, decoder_pass=decoder_pass
            )
            attention.append(weights)
        return DecoderOutput(states, tuple(attention))

    def step(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        caches: Sequence[KVCache],
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> tuple[DecoderOutput, list[KVCache]]:
        """Decode the next token of each row.

        tokens: (N,) int64; caches: one per layer, none at the first token. Returns states (N, 1, D)
        and the extended caches.
        """
        position = caches[0].keys.shape[2] if caches else 0
        states: Tensor = self.embedding(tokens[:, None], first_position=position)
        extended: list[KVCache] = []
        attention: list[AlignedAttention] = []
        for number, layer in enumerate(self._layers()):
            states, cache = layer.self_attend_step(states, caches[number] if caches else None)
            states, weights = layer.cross_attend(
                states, regions[number], region_mask=region_mask, decoder_pass=decoder_pass
            )
            extended.append(cache)
            attention.append(weights)
        return DecoderOutput(states, tuple(attention)), extended

    def _layers(self) -> Sequence[DecoderLayer]:
        return self.layers  # type: ignore[return-value]

    def log_probs(self, states: Tensor) -> Tensor:
        """Return log-probabilities of the next token, at least float32; (..., D) -> (..., V)."""
        logits: Tensor = self.output(states)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=dtype)
