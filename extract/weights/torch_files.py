"""Tensors by name in files of safetensors, and of `torch.save` (`.pth`, `.bin`)."""

import pickle
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from a2cap.data.errors import WeightsError


def load_torch_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of the one below "model", as float32 by name.

    Raises WeightsError where the file is damaged, or refers to anything but tensors in plain
    containers; no code of it is run.
    """
    try:
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
    model = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(model, dict) or not all(isinstance(v, Tensor) for v in model.values()):
        raise WeightsError(
            f"torch file {path.name!r} has no tensors by name; name a file with a state dict"
        )
    return {str(key): tensor.float() for key, tensor in model.items()}


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
