"""Gradients of the tokens of a caption with respect to the image, in models of `transformers`.

The image's states are those that attention to the image reads: the encoder's output in a model with
cross-attention, and otherwise the embeddings of the image's tokens as the first layer of the
language model reads them. What a class adds in further layers (DeepStack) is not among them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from a2cap.model.adapting.adapted_layers import AdaptedLayers
from a2cap.model.adapting.generation import force_tokens
from a2cap.model.adapting.image_columns import image_columns
from a2cap.model.faithfulness import RegionGradients, differentiable_masks, gradients_of

_REGIONS = ("encoder_hidden_states", "key_value_states")
"""Arguments of a cross-attention."""


def token_gradients(
    model: Any, layers: AdaptedLayers, inputs: Mapping[str, Tensor], tokens: Sequence[int]
) -> RegionGradients:
    """Compute the gradients of the probability of each token of a caption of one image, (1, L, N).

    inputs, tokens: as for `force_caption`, to whose N tokens of the image the gradients belong.
    """
    columns = image_columns(model, inputs)
    # the words of BLIP-2 have columns, the image of its Q-Former has all keys
    positions = None if columns is None or layers.words else columns[0]
    leaf = _Leaf(None if model.config.is_encoder_decoder else positions)
    with _differentiable(model), _reading(model, layers, leaf):
        log_probs = force_tokens(model, inputs, tokens)
        assert leaf.states is not None
        gradients = gradients_of(log_probs.exp(), leaf.states)
    if positions is None or leaf.columns is not None:
        return gradients
    return RegionGradients(gradients.importance[..., positions], gradients.product[..., positions])


class _Leaf:
    """States of the image, from which the graph begins; columns: theirs in the prompt, or None."""

    def __init__(self, columns: Tensor | None) -> None:
        self.columns = columns
        self.states: Tensor | None = None

    def of_prompt(self, hidden: Tensor) -> Tensor:
        """Return the states (1, P, D) of the prompt with the leaf in its columns."""
        assert self.columns is not None
        if self.states is not None:  # a later call, of new tokens
            return hidden
        self.states = hidden[:, self.columns].detach().requires_grad_()
        return hidden.detach().index_copy(1, self.columns, self.states)

    def of_encoder(self, states: Tensor) -> Tensor:
        """Return the same leaf for the output (1, R, D) of the encoder at every layer and token."""
        if self.states is None:
            self.states = states.detach().requires_grad_()
        return self.states


@contextmanager
def _reading(model: nn.Module, layers: AdaptedLayers, leaf: _Leaf) -> Iterator[None]:
    """Let the model read the leaf in place of the image's states."""
    attentions = {
        name: module
        for name, module in model.named_modules()
        if getattr(getattr(module, "a2", None), "layer", None) in layers.images
    }
    modules = list(attentions.values())
    if leaf.columns is not None:  # the first layer of the language model alone
        parts = next(iter(attentions)).split(".")
        depth = next(at for at, part in enumerate(parts) if part.isdigit())
        modules = [model.get_submodule(".".join(parts[: depth + 1]))]

    def replace(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if leaf.columns is None:
            return _replaced(module, args, kwargs, _REGIONS, leaf.of_encoder)
        return _replaced(module, args, kwargs, ("hidden_states",), leaf.of_prompt)

    with ExitStack() as hooks:
        for module in modules:
            # before the hook that passes on what an aligned attention reads
            hook = module.register_forward_pre_hook(replace, prepend=True, with_kwargs=True)
            hooks.callback(hook.remove)
        yield


def _replaced(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str],
    change: Callable[[Tensor], Tensor],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Change the first argument of `forward` that has one of the names and is not None."""
    parameters = list(inspect.signature(module.forward).parameters)
    for name in names:
        if kwargs.get(name) is not None:
            return args, {**kwargs, name: change(kwargs[name])}
        at = parameters.index(name) if name in parameters else len(args)
        if at < len(args) and args[at] is not None:
            return (*args[:at], change(args[at]), *args[at + 1 :]), kwargs
    return args, kwargs


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Let gradients pass through `generate`, whose decorator forbids it, and reach no parameter."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    generating: list[Any] = [part for part in model.modules() if hasattr(type(part), "generate")]
    for parameter in trained:
        parameter.requires_grad_(False)
    for part in generating:
        part.generate = MethodType(inspect.unwrap(type(part).generate), part)
    try:
        with torch.enable_grad(), differentiable_masks(model):
            yield
    finally:
        for part in generating:
            del part.generate
        for parameter in trained:
            parameter.requires_grad_(True)
