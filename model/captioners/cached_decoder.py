"""What decoders of Transformer layers share: a step that attends to a KV cache."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from a2cap.model.alignment import DecoderPass
from a2cap.model.attention.multi_head import SelfAttention
from a2cap.model.captioner import DecoderState, Memory, Tensors
from a2cap.model.captioners.encoder_decoder import DecoderOutput
from a2cap.model.kv_cache import KVCache
from a2cap.model.layers import require_positions


class CachedLayer(Protocol):
    """A layer with causal self-attention."""

    self_attention: SelfAttention


class CachedDecoder(nn.Module):
    """A `Decoder` whose layers attend to the tokens so far."""

    layers: Sequence[CachedLayer]

    def start(self, memory: Memory) -> Tensors:
        """Return no tensors: the state before the first token is an empty KV cache."""
        return ()

    def step(
        self, tokens: Tensor, state: DecoderState, decoder_pass: DecoderPass
    ) -> tuple[DecoderOutput, DecoderState]:
        """Decode the next token of each row, (N,) int64; raises ModelError beyond 512 positions."""
        cache = state.cache
        if cache is None:
            # a group for each row: beams grow from one row of an image, samples share no token
            pools = (layer.self_attention.empty_pool(len(tokens)) for layer in self.layers)
            cache = KVCache.empty(pools)
        require_positions(cache.tokens + 1)
        cache = cache.extended()
        return self.advance(tokens, cache, state.memory, decoder_pass), replace(state, cache=cache)

    def advance(
        self, tokens: Tensor, cache: KVCache, memory: Memory, decoder_pass: DecoderPass
    ) -> DecoderOutput:
        """Decode one token per row and fill its slots of the cache."""
        raise NotImplementedError
