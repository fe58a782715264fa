"""Caption decoder: words before, attention over regions, the next word (A2, "Caption Decoder").

One code path serves teacher forcing (L words at once) and decoding (one word and a cache). The K
captions of a picture share its projected regions: they are folded into the queries' axis.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2.model.alignment import AlignedAttention, DecoderPass
from a2.model.attention import CrossAttention, KeyValues, RegionProjection, SelfAttention
from a2.model.config import ModelConfig
from a2.model.feed_forward import FeedForward
from a2.model.positions import LONGEST_CAPTION, sinusoidal_positions


class WordEmbedding(nn.Module):
    """Word embedding, N(0, 1/D) scaled by sqrt(D) at use, plus sinusoidal position.

    It shares no weights with the output layer (the paper does not say; M2 does not either).
    """

    def __init__(self, *, vocabulary_size: int, width: int):
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, width)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.positions: Tensor
        self.register_buffer(
            "positions", sinusoidal_positions(LONGEST_CAPTION, width), persistent=False
        )

    def forward(self, tokens: Tensor, *, first_position: int = 0) -> Tensor:
        """tokens: (N, L) int64, of positions first_position and after. Returns (N, L, D)."""
        end = first_position + tokens.shape[1]
        if end > LONGEST_CAPTION:
            raise ValueError(
                f"a caption has {end} tokens, the decoder has {LONGEST_CAPTION} positions; "
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
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        states: Tensor,
        regions: RegionProjection,
        *,
        region_mask: Tensor,
        past: KeyValues | None,
        decoder_pass: DecoderPass,
    ) -> tuple[Tensor, KeyValues, AlignedAttention]:
        """states: (N, L, D), N = B * K with the rows of a picture together."""
        attended, key_values = self.self_attention(states, past=past)
        states = self.self_attention_norm(states + self.dropout(attended))
        by_picture = states.reshape(len(region_mask), -1, states.shape[-1])  # -> (B, K * L, D)
        attended, attention = self.cross_attention(
            by_picture, regions, region_mask=region_mask, decoder_pass=decoder_pass
        )
        attended = attended.reshape(states.shape)  # -> (N, L, D)
        states = self.cross_attention_norm(states + self.dropout(attended))
        transformed = self.feed_forward(states)
        states = self.feed_forward_norm(states + self.dropout(transformed))
        return states, key_values, attention


@dataclass(frozen=True)
class Decoded:
    """States (N, L, D) before the output layer, each layer's keys and values, and attention."""

    states: Tensor
    key_values: tuple[KeyValues, ...]
    attention: tuple[AlignedAttention, ...]


class CaptionDecoder(nn.Module):
    """Embedding, decoder layers and output layer."""

    def __init__(self, config: ModelConfig, *, vocabulary_size: int):
        super().__init__()
        self.embedding = WordEmbedding(vocabulary_size=vocabulary_size, width=config.width)
        self.layers = nn.ModuleList(
            DecoderLayer(config, aligned=config.is_aligned(number))
            for number in range(1, config.decoder_layers + 1)
        )
        self.output = nn.Linear(config.width, vocabulary_size)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def cross_attentions(self) -> list[CrossAttention]:
        """The cross-attention of each layer, the lowest first."""
        return [layer.cross_attention for layer in self.layers]  # type: ignore[misc]

    def forward(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        past: tuple[KeyValues, ...] | None = None,
        decoder_pass: DecoderPass,
    ) -> Decoded:
        """tokens: (N, L) int64; regions: one per layer; past: one per layer, then L is 1."""
        first_position = 0 if past is None else past[0].keys.shape[2]
        states: Tensor = self.embedding(tokens, first_position=first_position)
        key_values, attention = [], []
        for number, layer in enumerate(self.layers):
            states, layer_key_values, layer_attention = layer(
                states,
                regions[number],
                region_mask=region_mask,
                past=None if past is None else past[number],
                decoder_pass=decoder_pass,
            )
            key_values.append(layer_key_values)
            attention.append(layer_attention)
        return Decoded(states, tuple(key_values), tuple(attention))

    def log_probs(self, states: Tensor) -> Tensor:
        """Log-probabilities of the next token, at least float32; (..., D) -> (..., V)."""
        logits: Tensor = self.output(states)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=dtype)
