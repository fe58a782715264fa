"""Linear layers whose weights oneDNN has reordered once, for decoding on a CPU.

MKL, which torch calls in float32, reorders the weights in every product: with the few rows of a
decoding step this takes a third of the time, and half where the size of the vocabulary is odd.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor, nn


@contextmanager
def packed_layers(network: object) -> Iterator[None]:
    """Compute without gradients in this context; the parameters must not change in it.

    network: its linear layers on a CPU are packed when they are first used. Anything but a module
    is left as it is.
    """
    modules = network.modules() if isinstance(network, nn.Module) else ()
    layers = [module for module in modules if type(module) is nn.Linear]
    try:
        for layer in layers:
            if layer.weight.device.type == "cpu" and _is_supported(layer.weight.dtype):
                vars(layer)["forward"] = _packed(layer.weight, layer.bias)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    pack = cache(partial(torch.ops.mkldnn._reorder_linear_weight, weight.detach()))
    product = torch.ops.mkldnn._linear_pointwise

    def forward(states: Tensor) -> Tensor:
        # autocast does not know of this operator
        found: Tensor = product(states.to(weight.dtype), pack(), bias, "none", [], "")
        return found

    return forward


@cache
def _is_supported(dtype: torch.dtype) -> bool:
    """Report whether this build of torch has the operators, and the processor the type."""
    one = torch.ones(1, 1, dtype=dtype)
    try:
        return bool(_packed(one, None)(one) == 1)
    except (AttributeError, RuntimeError):
        return False
