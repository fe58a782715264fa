"""Caption decoder: words before, attention over regions, the next word (A2, "Caption Decoder").

Teacher forcing reads L words at once, decoding one word and a store of those before. The K captions
of an image share its projected regions: they are folded into the queries' axis.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.model.alignment import AlignedAttention, DecoderPass
from a2cap.model.attention.multi_head import CrossAttention, RegionProjection, SelfAttention
from a2cap.model.config import ModelConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers.dropout import Dropout
from a2cap.model.layers.feed_forward import FeedForward
from a2cap.model.layers.kv_cache import WordStore, visible_words
from a2cap.model.layers.positions import LONGEST_CAPTION, sinusoidal_positions


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
            raise ModelError(
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
        self.dropout = Dropout(config.dropout)

    def read(self, states: Tensor) -> Tensor:
        """The words see those before them; (N, L, D) -> (N, L, D)."""
        return self._with_read(states, self.self_attention(states))

    def read_next(
        self, states: Tensor, store: WordStore | None, *, is_visible: Tensor | None
    ) -> tuple[Tensor, WordStore]:
        """One word per row sees those before it, which the store keeps; states: (B, K, D)."""
        attended, store = self.self_attention.following(states, store, is_visible=is_visible)
        return self._with_read(states, attended), store

    def look(
        self,
        states: Tensor,
        regions: RegionProjection,
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> tuple[Tensor, AlignedAttention]:
        """The words look at the regions and are transformed; rows of an image lie together.

        states: (..., D), B * K * L words in any shape. Returns the same shape, and the attention.
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

    def _with_read(self, states: Tensor, attended: Tensor) -> Tensor:
        read: Tensor = self.self_attention_norm(states + self.dropout(attended))
        return read


@dataclass(frozen=True)
class Begun:
    """As far as the aligned and the perturbed pass are one: to the lowest aligned layer's masks.

    states: (N, L, D), that layer's words having read; attention: of the layers below.
    """

    states: Tensor
    attention: tuple[AlignedAttention, ...]

    def detached(self) -> "Begun":
        """The same as constants; the attention of layers without masks is in no loss."""
        return Begun(self.states.detach(), self.attention)


@dataclass(frozen=True)
class Decoded:
    """States (N, L, D) before the output layer, and each layer's attention."""

    states: Tensor
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
        aligned = [config.is_aligned(number + 1) for number in range(config.decoder_layers)]
        self._first_aligned = aligned.index(True) if any(aligned) else len(aligned)
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
        decoder_pass: DecoderPass,
    ) -> Decoded:
        """Teacher forcing; tokens: (N, L) int64; regions: one per layer."""
        begun = self.begin(tokens, regions, region_mask=region_mask, decoder_pass=decoder_pass)
        return self.end(begun, regions, region_mask=region_mask, decoder_pass=decoder_pass)

    def begin(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> Begun:
        """What no mask has a part in, which is the same in both passes; as for `forward`."""
        states: Tensor = self.embedding(tokens)
        attention: list[AlignedAttention] = []
        for number in range(self._first_aligned):
            layer = self._layer(number)
            states, paid = layer.look(
                layer.read(states),
                regions[number],
                region_mask=region_mask,
                decoder_pass=decoder_pass,
            )
            attention.append(paid)
        if self._first_aligned < len(self.layers):
            states = self._layer(self._first_aligned).read(states)
        return Begun(states, tuple(attention))

    def end(
        self,
        begun: Begun,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        decoder_pass: DecoderPass,
    ) -> Decoded:
        """The rest of a pass after `begin`."""
        states, attention = begun.states, list(begun.attention)
        for number in range(self._first_aligned, len(self.layers)):
            layer = self._layer(number)
            if number > self._first_aligned:
                states = layer.read(states)
            states, paid = layer.look(
                states, regions[number], region_mask=region_mask, decoder_pass=decoder_pass
            )
            attention.append(paid)
        return Decoded(states, tuple(attention))

    def step(
        self,
        tokens: Tensor,
        regions: tuple[RegionProjection, ...],
        *,
        region_mask: Tensor,
        stores: tuple[WordStore, ...],
        places: Tensor,
        decoder_pass: DecoderPass,
    ) -> tuple[Decoded, tuple[WordStore, ...]]:
        """The next word of each row; the aligned pass.

        tokens: (B, K) int64; stores: one per layer, of the words before, or none; places: (N, t)
        of each row's words in them, the next one included. States are (B, K, D).
        """
        is_visible = visible_words(places, tokens.shape[1])
        states: Tensor = self.embedding(
            tokens.reshape(-1, 1), first_position=places.shape[1] - 1
        ).reshape(*tokens.shape, -1)
        continued: list[WordStore] = []
        attention: list[AlignedAttention] = []
        for number in range(len(self.layers)):
            layer, before = self._layer(number), stores[number] if stores else None
            states, store = layer.read_next(states, before, is_visible=is_visible)
            states, paid = layer.look(
                states, regions[number], region_mask=region_mask, decoder_pass=decoder_pass
            )
            continued.append(store)
            attention.append(paid)
        return Decoded(states, tuple(attention)), tuple(continued)

    def _layer(self, number: int) -> DecoderLayer:
        return self.layers[number]  # type: ignore[return-value]

    def log_probs(self, states: Tensor) -> Tensor:
        """Log-probabilities of the next token, at least float32; (..., D) -> (..., V)."""
        logits: Tensor = self.output(states)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=dtype)
