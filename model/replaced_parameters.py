"""Other tensors in place of a network's parameters, for a while."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

Replacement = Callable[[nn.Module, Tensor], Tensor | None]
"""From a module and a parameter of its own to the tensor in its place, None to keep it."""


@contextmanager
def replaced(network: nn.Module, replacement: Replacement) -> Iterator[None]:
    """Compute with other tensors in the block."""
    replacements = []
    for module in network.modules():
        for name, parameter in module._parameters.items():
            tensor = None if parameter is None else replacement(module, parameter)
            if tensor is not None:
                replacements.append((module._parameters, name, parameter, tensor))
    try:
        for parameters, name, _, tensor in replacements:
            parameters[name] = tensor  # type: ignore[assignment]
        yield
    finally:
        for parameters, name, parameter, _ in replacements:
            parameters[name] = parameter


def linear_cast(network: nn.Module, dtype: torch.dtype) -> Replacement:
    """Cast the parameters of a network's linear layers, and return the replacement of them."""
    layers = (module for module in network.modules() if isinstance(module, nn.Linear))
    casts = {id(tensor): tensor.to(dtype) for layer in layers for tensor in layer.parameters()}
    # an embedding that shares the weight of a linear layer keeps it
    return lambda module, tensor: casts.get(id(tensor)) if isinstance(module, nn.Linear) else None


def frozen(network: nn.Module, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
    """Freeze parameters: the graph built inside gives them no gradient, but passes it on."""
    # decoding comes here at every token: skip the loop over the parameters
    if not torch.is_grad_enabled():
        return nullcontext()
    ids = set(map(id, parameters))
    return replaced(network, lambda _, tensor: tensor.detach() if id(tensor) in ids else None)
