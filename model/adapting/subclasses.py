"""Subclasses of attentions without the attention interface of `transformers`, to adapt them."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.models.blip.modeling_blip_text import BlipTextSelfAttention
from transformers.models.git.modeling_git import GitSelfAttention
from transformers.models.trocr.modeling_trocr import TrOCRAttention

from a2cap.model.adapting.adapted_attention import CrossInputs
from a2cap.model.adapting.attention_function import attend_adapted, region_mask_of
from a2cap.model.adapting.attention_parts import heads_of, projections, read_inputs
from a2cap.model.adapting.removal import removal_in
from a2cap.model.adapting.self_attention import SelfInputs
from a2cap.model.alignment import AlignedAttention
from a2cap.model.layers import merge_heads, split_heads


class _Subclass(nn.Module):
    """The `forward` of a cross-attention without the interface; that of its base if not aligned."""

    def forward(self: Any, *args: object, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Attend over the patches; states (B, Q, D) and weights (B, H, Q, R)."""
        removal = removal_in(self.a2.layer)
        if removal is None:
            plain: tuple[Tensor, Tensor | None] = self._attend(*args, **kwargs)
            return plain
        inputs, name = read_inputs(self, super().forward, args, kwargs), self._mask_name
        assert isinstance(inputs, CrossInputs)
        keys, padding = inputs.regions.shape[1], kwargs.get(name)
        mask = removal.mask(self.a2.layer, padding, like=inputs.hidden, keys=keys, is_cross=True)
        states, weights = self._attend(*args, **{**kwargs, name: mask})
        nothing = self.out_proj.bias if hasattr(self, "out_proj") else states.new_zeros(1)
        return torch.where(removal.sees_nothing(mask)[:, 0], nothing, states), weights

    @property
    def _mask_name(self) -> str:
        # BLIP's own forward reads no other mask in a cross-attention
        return "encoder_attention_mask" if hasattr(self, "query") else "attention_mask"

    def _attend(self: Any, *args: object, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        plain = super().forward
        if self.a2.alignment is None:
            if self.a2.is_recorded and "output_attentions" in inspect.signature(plain).parameters:
                kwargs["output_attentions"] = True
            states, weights = plain(*args, **kwargs)
            if weights is not None:
                self.a2.record(AlignedAttention(weights, weights))
            return states, weights
        inputs = read_inputs(self, plain, args, kwargs)
        assert isinstance(inputs, CrossInputs)
        heads = heads_of(self)
        keys, values = _keys_and_values(self, inputs, heads)
        queries = split_heads(projections(self)[0](inputs.hidden), heads)
        rate = self.dropout.p if isinstance(self.dropout, nn.Dropout) else self.dropout
        attended, aligned = self.a2(
            queries,
            keys,
            values,
            inputs,
            scale=queries.shape[-1] ** -0.5,
            region_mask=region_mask_of(kwargs.get(self._mask_name), keys),
            dropout=rate if self.training else 0.0,
        )
        states = merge_heads(attended)
        return self.out_proj(states) if hasattr(self, "out_proj") else states, aligned.used


def _keys_and_values(attention: Any, inputs: CrossInputs, heads: int) -> tuple[Tensor, Tensor]:
    """Project the regions, (B, H, R, d) each, or take them from the KV cache."""
    cache: Any = inputs.cache
    layer = attention.layer_idx
    if inputs.is_cached:
        held = cache.cross_attention_cache.layers[layer]
        return held.keys, held.values
    layers = projections(attention)[1:]
    keys, values = (split_heads(layer(inputs.regions), heads) for layer in layers)
    if isinstance(cache, EncoderDecoderCache):
        keys, values = cache.cross_attention_cache.update(keys, values, layer)
        cache.is_updated[layer] = True
    return keys, values


class AdaptedBlipAttention(_Subclass, BlipTextSelfAttention):  # type: ignore[misc]
    """BLIP's cross-attention of tokens over image patches."""


class AdaptedTrOCRAttention(_Subclass, TrOCRAttention):  # type: ignore[misc]
    """TrOCR's cross-attention of tokens over image patches."""


class AdaptedGitAttention(GitSelfAttention):  # type: ignore[misc]
    """GIT's self-attention of tokens over the image and the tokens before them."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as its class does, through `attend_adapted`."""
        past = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
        parts = (layer(hidden_states) for layer in projections(self))
        queries, keys, values = (split_heads(part, heads_of(self)) for part in parts)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        states, weights = attend_adapted(
            self,
            queries,
            keys,
            values,
            attention_mask,
            a2_inputs=SelfInputs(hidden_states, past_key_values, past),
            dropout=self.dropout.p if self.training else 0.0,
        )
        return states.flatten(2), weights


SUBCLASSES: dict[type[nn.Module], type[nn.Module]] = {
    BlipTextSelfAttention: AdaptedBlipAttention,
    TrOCRAttention: AdaptedTrOCRAttention,
    GitSelfAttention: AdaptedGitAttention,
}
"""Class of `transformers` without the interface -> the class that its instances get."""
