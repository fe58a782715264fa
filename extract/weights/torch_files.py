"""Tensors by name in files of safetensors, and of `torch.save` (`.pth`, `.bin`)."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from a2cap.data.errors import WeightsError

_BUILDERS = ("_reconstruct", "scalar")


class _Unused:
    """An array or number of NumPy, such as an RNG state beside the tensors; it is not built."""

    def __init__(self, *content: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_NUMPY: list[Callable[..., object] | tuple[Callable[..., object], str]] = [
    type(name, (_Unused,), {"__module__": module})
    for module, names in (
        ("numpy", ("ndarray", "dtype")),
        ("numpy.core.multiarray", _BUILDERS),
        ("numpy._core.multiarray", _BUILDERS),
    )
    for name in names
]
"""Stand-ins under NumPy's names; torch 2.5 permits a class by its own name only."""


def load_torch_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of that below "model" or "state_dict", as float32.

    Raises WeightsError where the file is damaged, or refers to anything but tensors in plain
    containers; no code of it is run.
    """
    size = path.stat().st_size
    try:
        _require_stored(path, size)
        with torch.serialization.safe_globals(_NUMPY):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise WeightsError(
            f"torch file {path.name!r} is unsafe: it refers to {named[1] if named else 'code'!r}, "
            "and nothing of it was run; do not use this file"
        ) from error
    except Exception as error:  # damaged archives raise any built-in error
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WeightsError(
            f"torch file {path.name!r} is damaged: {reason}; download it again"
        ) from error
    fields = content if isinstance(content, dict) else {}
    model = fields.get("model", fields.get("state_dict", content))
    if not isinstance(model, dict) or not all(isinstance(v, Tensor) for v in model.values()):
        raise WeightsError(
            f"torch file {path.name!r} has no tensors by name; name a file with a state dict"
        )
    claimed = sum(tensor.nbytes for tensor in model.values())
    if claimed > 2 * size:  # of strides 0; tied weights occur twice
        raise WeightsError(
            f"torch file {path.name!r} is damaged: its tensors claim {claimed:,} bytes, the file "
            f"has {size:,}; download it again"
        )
    return {str(key): tensor.float() for key, tensor in model.items()}


def _require_stored(path: Path, size: int) -> None:
    """Raise ValueError if an archive expands to more than its size; `torch.save` never packs."""
    if is_zipfile(path):
        with ZipFile(path) as archive:
            expanded = sum(member.file_size for member in archive.infolist())
        if expanded > size:
            raise ValueError(f"it expands to {expanded:,} bytes from {size:,}")


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors by name, and the metadata; WeightsError where the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(
            f"weights {path.name!r} are damaged: {error}; download or make them again"
        ) from error
