"""Attentions of a model of `transformers` to the image: found, and adapted in place.

They are the cross-attentions of a decoder or, where the image's tokens are part of the prompt, the
self-attentions of the language model. Where a class uses the attention interface of `transformers`,
they get the function `attend_adapted` and nothing else of the model changes. BLIP's, TrOCR's and
GIT's have no interface; they get a subclass of their own class. Written for transformers 5.23.
"""

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.git.modeling_git import GitSelfAttention

from a2cap.model.adapting.adapted_attention import AdaptedAttention
from a2cap.model.adapting.attention_function import INTERFACE, require_interceptable
from a2cap.model.adapting.attention_parts import heads_of, projections, read_inputs, widths_of
from a2cap.model.adapting.image_columns import follow
from a2cap.model.adapting.subclasses import SUBCLASSES
from a2cap.model.alignment import Alignment, BilinearMask
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.errors import ModelError

_CROSS = ("crossattention", "encoder_attn", "EncDecAttention", "encoder_decoder_attention")
"""Names of cross-attentions in BERT, GPT-2, BLIP and Q-Formers; BART and TrOCR; T5; Pix2Struct."""


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
            require_interceptable(attention)
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
    name, layers = type(model).__name__, config.aligned_layers
    kind = "cross" if is_cross else "self"
    if layers != "all" and max(layers) > count:
        raise ModelError(
            f"aligned_layers names layer {max(layers)}, {name} has {count} "
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
    for part in module.modules():
        if not isinstance(part, BilinearMask) and projections(part):
            yield part


def _check(attention: nn.Module) -> None:
    if type(attention) in SUBCLASSES or hasattr(attention, "a2"):
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
    if is_new and type(attention) in SUBCLASSES:
        attention.__class__ = SUBCLASSES[type(attention)]
    elif is_new:
        # a config of its own: the interface of all other attentions of the model stays
        attention.a2_plain_config = attention.config
        attention.config = copy.copy(attention.config)
        attention.config._attn_implementation = INTERFACE
    # a self-attention without alignment needs no more than its queries, keys and values
    is_read = is_cross or adapted.alignment is not None
    has_hook = _pass_inputs_on in attention._forward_pre_hooks.values()
    if is_read and type(attention) not in SUBCLASSES.values() and not has_hook:
        attention.register_forward_pre_hook(_pass_inputs_on, with_kwargs=True)


def _alignment(attention: Any, config: AlignmentConfig) -> Alignment:
    query: Any
    query, key, *_ = projections(attention)
    (hidden_width, width), (region_width, _) = widths_of(query), widths_of(key)
    heads = heads_of(attention)
    widths = {"hidden_width": hidden_width, "region_width": region_width}
    return Alignment(config, heads=heads, head_width=width // heads, **widths)


def _pass_inputs_on(
    attention: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Add what the attention function does not get, states and regions, to its arguments.

    As arguments, not as attributes: two threads may run one model.
    """
    inputs = read_inputs(attention, attention.forward, args, kwargs)
    return args, {**kwargs, "a2_inputs": inputs}
