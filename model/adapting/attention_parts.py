"""Parts of an attention module of `transformers`: its projections, heads, and what it reads."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from a2cap.model.adapting.adapted_attention import CrossInputs
from a2cap.model.adapting.self_attention import SelfInputs

_PROJECTIONS = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q", "k", "v"),
    ("q_attn", "c_attn"),
)
_HEADS = ("num_attention_heads", "num_heads", "n_heads")


def projections(attention: nn.Module) -> list[nn.Module]:
    """Return the projections of queries, keys and values; GPT-2 has one of the latter two."""
    for names in _PROJECTIONS:
        if all(hasattr(attention, name) for name in names):
            return [getattr(attention, name) for name in names]
    return []


def heads_of(attention: Any) -> int:
    """Return the number of heads of the queries."""
    names = [name for name in _HEADS if hasattr(attention, name)]
    if names:
        return int(getattr(attention, names[0]))
    return int(widths_of(projections(attention)[0])[1] // attention.head_dim)


def widths_of(layer: Any) -> tuple[int, int]:
    """Return the input and the output width of a linear layer or of GPT-2's Conv1D."""
    if hasattr(layer, "in_features"):
        return layer.in_features, layer.out_features
    return tuple(layer.weight.shape)


def read_inputs(
    attention: Any,
    forward: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> CrossInputs | SelfInputs:
    """Find states, regions and cache among the arguments of an attention's `forward`."""
    arguments = inspect.signature(forward).bind(*args, **kwargs).arguments
    arguments = {**arguments, **arguments.get("kwargs", {})}
    names = ("encoder_hidden_states", "key_value_states")
    regions = next((arguments[name] for name in names if arguments.get(name) is not None), None)
    cache: Any = arguments.get("past_key_values")
    layer = getattr(attention, "layer_idx", None)
    if regions is None:
        past = 0 if cache is None else cache.get_seq_length(layer)
        return SelfInputs(arguments["hidden_states"], cache, past)
    is_cached = bool(getattr(cache, "is_updated", {}).get(layer))
    return CrossInputs(arguments["hidden_states"], regions, cache, is_cached)
