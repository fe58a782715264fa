"""Attentions of a model of `transformers` to the image: found, and adapted in place.

They are the cross-attentions of a decoder or, where the image's tokens are part of the prompt, the
self-attentions of the language model. Where a class uses the attention interface of `transformers`,
they get the function `attend_adapted` and nothing else of the model changes. BLIP's, TrOCR's and
GIT's have no interface; they get a subclass of their own class. Written for transformers 5.23.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.blip.modeling_blip_text import BlipTextSelfAttention
from transformers.models.git.modeling_git import GitSelfAttention
from transformers.models.trocr.modeling_trocr import TrOCRAttention

from a2cap.model.adapting.adapted_attention import AdaptedAttention, CrossInputs
from a2cap.model.adapting.image_columns import follow
from a2cap.model.adapting.removal import removal_in
from a2cap.model.adapting.self_attention import SelfInputs, change_of_states
from a2cap.model.alignment import (
    AlignedAttention,
    Alignment,
    BilinearMask,
    padding_bias,
    scaled_product,
)
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.errors import ModelError
from a2cap.model.layers import merge_heads, split_heads

_INTERFACE = "a2cap"
"""Name of `attend_adapted` among the attention functions of `transformers`."""

_CROSS = ("crossattention", "encoder_attn", "EncDecAttention", "encoder_decoder_attention")
"""Names of cross-attentions in BERT, GPT-2, BLIP and Q-Formers; BART and TrOCR; T5; Pix2Struct."""
_PROJECTIONS = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q", "k", "v"),
    ("q_attn", "c_attn"),
)
_HEADS = ("num_attention_heads", "num_heads", "n_heads")


@dataclass(frozen=True)
class AdaptedLayers:
    """Numbers of the adapted layers of a model, as a `recording` names them, the lowest first.

    images: attentions to the image; words: attentions of BLIP-2's language model, whose keys
    include the outputs of the Q-Former; empty for all other models.
    """

    images: tuple[int, ...]
    words: tuple[int, ...]


def adapt_layers(model: nn.Module, config: AlignmentConfig) -> AdaptedLayers:
    """Adapt the attentions of a model to the image, in place.

    With the fusion `none` the model computes what it computed, bit for bit. A model that is adapted
    already gets the new alignment. Raises ModelError for a model that cannot be adapted.
    """
    cross = dict(_cross_attentions(model))
    words: list[nn.Module] = []
    images = [module for name, module in cross.items() if "qformer" in name]
    if images:  # words attend to the queries, and these to the image
        language = model.get_submodule("language_model")
        words = [module for name, module in cross.items() if "qformer" not in name]
        words = words or list(_cores(language))
    images = images or list(cross.values()) or list(_self_attentions(model))
    if not images:
        raise ModelError(
            f"no attention to an image in {type(model).__name__}; a2 adapts captioners whose "
            "decoder attends to the image, such as BLIP, LLaVA or VisionEncoderDecoderModel"
        )
    _require_alignable(model, config, is_cross=bool(cross), count=len(images))
    for attention in (*images, *words):
        _check(attention)
        if not cross and config.fusion != "none":
            _require_interceptable(attention)
    for layer, attention in enumerate((*images, *words)):
        is_image = layer < len(images)
        is_aligned = is_image and config.includes(layer + 1)
        adapted = AdaptedAttention(
            layer=layer,
            reads_prompt=not (is_image and words),
            alignment=_alignment(attention, config) if is_aligned else None,
        )
        _adapt(attention, adapted, is_cross=attention in cross.values())
    if not cross and config.fusion != "none":
        follow(model)
    numbers = tuple(range(len(images) + len(words)))
    return AdaptedLayers(numbers[: len(images)], numbers[len(images) :])


def _require_alignable(
    model: nn.Module, config: AlignmentConfig, *, is_cross: bool, count: int
) -> None:
    """Raise ModelError for an alignment that the model cannot have; count: of its layers."""
    if config.fusion == "none":
        return
    name, named = type(model).__name__, config.aligned_layers
    kind = "cross" if is_cross else "self"
    if named != "all" and max(named) > count:
        raise ModelError(
            f"aligned_layers names layer {max(named)}, {name} has {count} "
            f'{kind}-attentions to the image; choose "all" or layers from 1'
        )


def _cross_attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _CROSS:
            yield from ((name, core) for core in _cores(module))


def _self_attentions(model: Any) -> Iterator[nn.Module]:
    """Yield the self-attentions of a language model whose prompt contains the image."""
    if "pixel_values" not in inspect.signature(model.forward).parameters:
        return
    for module in model.get_decoder().modules():
        # those with a KV cache, which has layers; an image encoder has none
        is_self = hasattr(module, "layer_idx")
        if is_self and (isinstance(module, GitSelfAttention) or _uses_interface(module)):
            yield module


def _uses_interface(module: nn.Module) -> bool:
    forward: Any = inspect.unwrap(type(module).forward)
    return "ALL_ATTENTION_FUNCTIONS" in forward.__code__.co_names


def _cores(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that project queries and keys, mask networks left out."""
    for one in module.modules():
        if not isinstance(one, BilinearMask) and _projections(one):
            yield one


def _projections(attention: nn.Module) -> list[nn.Module]:
    """Return the projections of queries, keys and values; GPT-2 has one of the latter two."""
    for names in _PROJECTIONS:
        if all(hasattr(attention, name) for name in names):
            return [getattr(attention, name) for name in names]
    return []


def _heads(attention: Any) -> int:
    names = [name for name in _HEADS if hasattr(attention, name)]
    if names:
        return int(getattr(attention, names[0]))
    return int(_widths(_projections(attention)[0])[1] // attention.head_dim)


def _check(attention: nn.Module) -> None:
    if type(attention) in _SWAPPED or hasattr(attention, "a2"):
        return
    if not _uses_interface(attention):
        raise ModelError(
            f"cannot adapt {type(attention).__name__}: it does not use the attention interface of "
            "transformers; update transformers, or choose another model"
        )


def _adapt(attention: Any, adapted: AdaptedAttention, *, is_cross: bool) -> None:
    weight = next(attention.parameters())
    is_new = not hasattr(attention, "a2")
    attention.a2 = adapted.to(weight.device, weight.dtype).train(attention.training)
    if is_new and type(attention) in _SWAPPED:
        attention.__class__ = _SWAPPED[type(attention)]
    elif is_new:
        # a config of its own: the interface of all other attentions of the model stays
        attention.a2_plain_config = attention.config
        attention.config = copy.copy(attention.config)
        attention.config._attn_implementation = _INTERFACE
    # a self-attention without alignment needs no more than its queries, keys and values
    is_read = is_cross or adapted.alignment is not None
    has_hook = _pass_inputs_on in attention._forward_pre_hooks.values()
    if is_read and type(attention) not in _SWAPPED.values() and not has_hook:
        attention.register_forward_pre_hook(_pass_inputs_on, with_kwargs=True)


def _alignment(attention: Any, config: AlignmentConfig) -> Alignment:
    query: Any
    query, key, *_ = _projections(attention)
    (hidden_width, width), (region_width, _) = _widths(query), _widths(key)
    heads = _heads(attention)
    widths = {"hidden_width": hidden_width, "region_width": region_width}
    return Alignment(config, heads=heads, head_width=width // heads, **widths)


def _widths(layer: Any) -> tuple[int, int]:
    """Return the input and the output width of a linear layer or of GPT-2's Conv1D."""
    if hasattr(layer, "in_features"):
        return layer.in_features, layer.out_features
    return tuple(layer.weight.shape)


def _read_inputs(
    attention: Any,
    forward: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> CrossInputs | SelfInputs:
    """Find states, regions and cache among the arguments of an attention's `forward`."""
    given = inspect.signature(forward).bind(*args, **kwargs).arguments
    given = {**given, **given.get("kwargs", {})}
    names = ("encoder_hidden_states", "key_value_states")
    regions = next((given[name] for name in names if given.get(name) is not None), None)
    cache: Any = given.get("past_key_values")
    layer = getattr(attention, "layer_idx", None)
    if regions is None:
        past = 0 if cache is None else cache.get_seq_length(layer)
        return SelfInputs(given["hidden_states"], cache, past)
    is_cached = bool(getattr(cache, "is_updated", {}).get(layer))
    return CrossInputs(given["hidden_states"], regions, cache, is_cached)


def _pass_inputs_on(
    attention: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Add what the attention function does not get, states and regions, to its arguments.

    As arguments, not as attributes: two threads may run one model.
    """
    inputs = _read_inputs(attention, attention.forward, args, kwargs)
    return args, {**kwargs, "a2_inputs": inputs}


def attend_adapted(
    attention: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as the model does, or aligned; an attention function of `transformers`.

    queries: (B, H, Q, d).
    keys, values: (B, H, R, d).
    attention_mask: (B, 1, Q or 1, R), bool, True where to attend, or the summand of the scores.
    Returns (B, Q, H, d) and weights or None.
    """
    removal = removal_in(attention.a2.layer)
    if removal is None:
        return _attend(attention, queries, keys, values, attention_mask, **kwargs)
    mask = removal.mask(
        attention.a2.layer,
        attention_mask,
        like=queries,
        keys=keys.shape[2],
        is_cross=isinstance(kwargs.get("a2_inputs"), CrossInputs),
        is_causal=getattr(attention, "is_causal", True),
    )
    states, weights = _attend(attention, queries, keys, values, mask, **kwargs)
    return states.masked_fill(removal.sees_nothing(mask).transpose(1, 2), 0), weights


def _attend(
    attention: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention_mask: Tensor | None,
    *,
    a2_inputs: CrossInputs | SelfInputs | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as `attend_adapted` does, where no token is removed."""
    adapted: AdaptedAttention = attention.a2
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    if adapted.alignment is not None and isinstance(a2_inputs, CrossInputs):
        exists = _region_mask(attention_mask, keys)
        parts = {"scale": scale, "region_mask": exists, "dropout": dropout}
        states, aligned = adapted(queries, keys, values, a2_inputs, **parts)
        return states.transpose(1, 2), aligned.used
    eager, plain = _functions(attention)

    def weigh(rows: Tensor, bias: Tensor | None) -> Tensor:
        # the class's own eager function knows shared keys, capped scores and sinks
        options = {**kwargs, "dropout": 0.0, "scaling": scale}
        weights: Tensor = eager(attention, rows, keys, values, bias, **options)[1]
        return weights

    if adapted.alignment is None and adapted.is_recorded:
        if isinstance(a2_inputs, CrossInputs):
            bias = padding_bias(_region_mask(attention_mask, keys))
            weights = scaled_product(queries, keys, scale=scale, bias=bias).float().softmax(dim=-1)
            adapted.record(AlignedAttention(weights, weights))
        else:
            # the last query only, which predicts the next token
            bias_of_last = _as_bias(attention_mask, queries.dtype)
            weights = weigh(queries[:, :, -1:], bias_of_last).float()
            adapted.record(AlignedAttention(weights, weights), queries=queries.shape[2])
    options = {**kwargs, "dropout": dropout, "scaling": scaling}
    result: tuple[Tensor, Tensor | None] = plain(
        attention, queries, keys, values, attention_mask, **options
    )
    if adapted.alignment is None:
        return result
    assert isinstance(a2_inputs, SelfInputs)
    _require_interceptable(attention)
    change = change_of_states(
        adapted, queries, values, attention_mask, a2_inputs, weigh=weigh, dropout=dropout
    )
    return result[0] + change, result[1]


def _functions(attention: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the eager attention function of a class, and the one that its model has chosen."""
    if isinstance(attention, GitSelfAttention):
        return _git_attention, _git_attention
    eager = inspect.unwrap(type(attention).forward).__globals__["eager_attention_forward"]
    return eager, ALL_ATTENTION_FUNCTIONS.get_interface(_implementation(attention), eager)


def _implementation(attention: Any) -> str:
    config = getattr(attention, "a2_plain_config", None) or attention.config
    return str(config._attn_implementation)


def _require_interceptable(attention: Any) -> None:
    """Raise ModelError for a self-attention whose mask has another form than a matrix."""
    if not isinstance(attention, GitSelfAttention):
        name = _implementation(attention)
        if name not in ("eager", "sdpa"):
            raise ModelError(
                f"alignment of self-attention cannot read the mask of {name!r}; call "
                'model.set_attn_implementation("sdpa")'
            )


AttentionInterface.register(_INTERFACE, attend_adapted)


def _region_mask(attention_mask: Tensor | None, keys: Tensor) -> Tensor:
    """Return (B, R) bool, True where the last query may attend; keys: (B, H, R, d)."""
    if attention_mask is None:
        return torch.ones(len(keys), keys.shape[2], dtype=torch.bool, device=keys.device)
    last = attention_mask[:, 0, -1].expand(len(keys), -1)
    return last if last.dtype == torch.bool else last > torch.finfo(last.dtype).min / 2


def _as_bias(attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the mask of the last query as a summand of its scores, (B, 1, 1, R)."""
    if attention_mask is None:
        return None
    is_whole = attention_mask.ndim == 2  # of flash attention
    last = attention_mask[:, None, None] if is_whole else attention_mask[:, :, -1:]
    if last.is_floating_point():
        return last
    bias = torch.zeros(last.shape, dtype=dtype, device=last.device)
    return bias.masked_fill_(~last.bool(), torch.finfo(dtype).min)


class _Swapped(nn.Module):
    """The `forward` of a cross-attention without the interface; that of its base if not aligned."""

    def forward(self: Any, *args: object, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Attend over the patches; states (B, Q, D) and weights (B, H, Q, R)."""
        removal = removal_in(self.a2.layer)
        if removal is None:
            plain: tuple[Tensor, Tensor | None] = self._attend(*args, **kwargs)
            return plain
        inputs, name = _read_inputs(self, super().forward, args, kwargs), self._mask_name
        assert isinstance(inputs, CrossInputs)
        keys, given = inputs.regions.shape[1], kwargs.get(name)
        mask = removal.mask(self.a2.layer, given, like=inputs.hidden, keys=keys, is_cross=True)
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
        inputs = _read_inputs(self, plain, args, kwargs)
        assert isinstance(inputs, CrossInputs)
        heads = _heads(self)
        keys, values = _keys_and_values(self, inputs, heads)
        queries = split_heads(_projections(self)[0](inputs.hidden), heads)
        rate = self.dropout.p if isinstance(self.dropout, nn.Dropout) else self.dropout
        attended, aligned = self.a2(
            queries,
            keys,
            values,
            inputs,
            scale=queries.shape[-1] ** -0.5,
            region_mask=_region_mask(kwargs.get(self._mask_name), keys),
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
    projections = _projections(attention)[1:]
    keys, values = (split_heads(one(inputs.regions), heads) for one in projections)
    if isinstance(cache, EncoderDecoderCache):
        keys, values = cache.cross_attention_cache.update(keys, values, layer)
        cache.is_updated[layer] = True
    return keys, values


class AdaptedBlipAttention(_Swapped, BlipTextSelfAttention):  # type: ignore[misc]
    """BLIP's cross-attention of tokens over image patches."""


class AdaptedTrOCRAttention(_Swapped, TrOCRAttention):  # type: ignore[misc]
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
        given = (hidden_states, attention_mask, past_key_values)
        inputs = _read_inputs(self, super().forward, given, kwargs)
        parts = (one(hidden_states) for one in _projections(self))
        queries, keys, values = (split_heads(part, _heads(self)) for part in parts)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        states, weights = attend_adapted(
            self,
            queries,
            keys,
            values,
            attention_mask,
            a2_inputs=inputs,
            dropout=self.dropout.p if self.training else 0.0,
        )
        return states.flatten(2), weights


def _git_attention(
    attention: nn.Module,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Attend as GIT's class does, to the bit; an attention function of `transformers`."""
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
    scores = scores if attention_mask is None else scores + attention_mask
    weights = functional.dropout(scores.softmax(dim=-1), dropout)
    return (weights @ values).transpose(1, 2).contiguous(), weights


_SWAPPED: dict[type[nn.Module], type[nn.Module]] = {
    BlipTextSelfAttention: AdaptedBlipAttention,
    TrOCRAttention: AdaptedTrOCRAttention,
    GitSelfAttention: AdaptedGitAttention,
}
"""Class of `transformers` without the interface -> the class that its instances get."""
