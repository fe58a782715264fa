"""Modules that are made only to be filled from a file: without the random numbers that would go.

PyTorch fills every parameter when a module is made. Of a captioner of the paper's size that takes
half a second; on the meta device it loads PyTorch's compiler, which takes as long as importing it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class Unfilled(TorchFunctionMode):
    """Within it, modules keep what was in memory in place of random or constant parameters.

    `load_state_dict` must then fill all of them. Draws nothing from the global random state.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Leaves the tensor as it is where `func` would only fill it."""
        given = dict(kwargs or {})
        in_place = func in (Tensor.uniform_, Tensor.normal_)
        if in_place or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)
