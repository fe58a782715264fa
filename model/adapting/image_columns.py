"""Positions of the image's tokens among the keys of a model whose prompt contains the image."""

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from a2cap.model.errors import ModelError


def image_columns(model: Any, inputs: Mapping[str, Tensor]) -> list[Tensor] | None:
    """Return the positions of each image's tokens among the keys of its prompt; None if all are.

    inputs: of `model.generate`, or of its first call of `model.forward`.
    """
    config = model.config
    names = ("image_token_id", "image_token_index")
    tokens = [getattr(config, name) for name in names if getattr(config, name, None) is not None]
    if tokens and inputs.get("input_ids") is not None:
        is_image = inputs["input_ids"] == tokens[0]
        return [row.nonzero().squeeze(1) for row in is_image]
    # generate puts BLIP-2's queries first; GIT's states of the image have no token
    first = getattr(config, "num_query_tokens", None)
    if first is None and config.model_type == "git":
        git = getattr(model, "git", model)
        first = git.encoder.layer[0].attention.self.image_patch_tokens
    if first is None:
        return None
    count = first if "pixel_values" in inputs else 0
    device = next(iter(inputs.values())).device
    return [torch.arange(count, device=device)] * count_prompts(inputs)


def count_prompts(inputs: Mapping[str, Tensor]) -> int:
    """Return the number of prompts; pixel_values may have rows of tiles or patches."""
    names = ("input_ids", "inputs_embeds")
    name = next((name for name in names if inputs.get(name) is not None), None)
    return len(inputs[name or next(iter(inputs))])


def padded(columns: Sequence[Tensor], value: int = 0) -> Tensor:
    """Return the positions as (B, N) int64."""
    return pad_sequence(list(columns), batch_first=True, padding_value=value)


@dataclass(frozen=True)
class ImageColumns:
    """The image's part of the keys of one self-attention.

    positions: (B, N) int64, padded with 0.
    exists: (B, N) bool, False on this padding.
    last: (B,) int64, the last of each prompt.
    first: the least of these.
    mask_keys: projection of the image's states for the mask network.
    """

    positions: Tensor
    exists: Tensor
    last: Tensor
    first: int
    mask_keys: Tensor


_forward: ContextVar[tuple[nn.Module, Mapping[str, Tensor]] | None] = ContextVar(
    "forward", default=None
)


def follow(model: Any) -> None:
    """Let the attentions of a model read its inputs, by `find_columns` and `has_image_tokens`."""
    # the model without its head, which wrappers of the whole call too
    body = model.base_model
    if _begin not in body._forward_pre_hooks.values():
        body.register_forward_pre_hook(_begin, with_kwargs=True)
        body.register_forward_hook(_end, always_call=True)


def _begin(model: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    arguments = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    _forward.set((model, tensors))


def _end(model: nn.Module, args: tuple[object, ...], output: object) -> None:
    _forward.set(None)


def find_columns(rows: int) -> list[Tensor]:
    """Return the positions of the image's tokens in the call that runs, for each of its rows.

    Raises ModelError for a prompt without them.
    """
    call = _forward.get()
    columns = None if call is None else image_columns(*call)
    if call is None or columns is None or len(columns) != rows:
        raise ModelError(
            "alignment cannot find the image's tokens without input_ids; call the whole model, "
            "with input_ids in place of inputs_embeds"
        )
    empty = [number for number, row in enumerate(columns) if not len(row)]
    if empty:
        raise ModelError(
            f"no image tokens in prompt {empty[0]} of {rows}; alignment needs an image in each, "
            'so give each its image, or set fusion to "none"'
        )
    return columns


def has_image_tokens() -> bool:
    """Report whether the call that runs contains image tokens."""
    call = _forward.get()
    columns = None if call is None else image_columns(*call)
    return any(len(row) for row in columns or ())
