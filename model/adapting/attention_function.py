"""Attention function of adapted models, in the attention interface of `transformers`."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.git.modeling_git import GitSelfAttention

from a2cap.model.adapting.adapted_attention import AdaptedAttention, CrossInputs
from a2cap.model.adapting.removal import removal_in
from a2cap.model.adapting.self_attention import SelfInputs, change_of_states
from a2cap.model.alignment import AlignedAttention, padding_bias, scaled_product
from a2cap.model.errors import ModelError

INTERFACE = "a2cap"
"""Name of `attend_adapted` among the attention functions of `transformers`."""


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
        exists = region_mask_of(attention_mask, keys)
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
            bias = padding_bias(region_mask_of(attention_mask, keys))
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
    require_interceptable(attention)
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


def _implementation(attention: Any) -> str:
    config = getattr(attention, "a2_plain_config", None) or attention.config
    return str(config._attn_implementation)


def require_interceptable(attention: Any) -> None:
    """Raise ModelError for a self-attention whose mask has another form than a matrix."""
    if not isinstance(attention, GitSelfAttention):
        name = _implementation(attention)
        if name not in ("eager", "sdpa"):
            raise ModelError(
                f"alignment of self-attention cannot read the mask of {name!r}; call "
                'model.set_attn_implementation("sdpa")'
            )


def region_mask_of(attention_mask: Tensor | None, keys: Tensor) -> Tensor:
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


AttentionInterface.register(INTERFACE, attend_adapted)
