"""Tensor files (safetensors), and modules made to be filled from them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor
from torch.overrides import TorchFunctionMode


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, contiguous or not, by name; OSError if that fails."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # Not the library's save_file: killed, it leaves a file of a random name, which no rerun would
    # remove, and its error on a full disk is not an OSError.
    path.write_bytes(save(contiguous, metadata=None if metadata is None else dict(metadata)))


class skip_init(TorchFunctionMode):  # lower case as torch.no_grad
    """Context in which modules leave their parameters uninitialised.

    `load_state_dict` must then fill all of them. Neither reads nor changes the global RNG state.
    """

    # Initialising a captioner of the paper's size takes half a second. The meta device would skip
    # it too, but loads PyTorch's compiler, which takes as long as importing torch.

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the tensor as it is if `func` would only initialise it."""
        options = dict(kwargs or {})
        in_place = func in (Tensor.uniform_, Tensor.normal_)
        if in_place or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else options["tensor"]
        return func(*args, **options)
