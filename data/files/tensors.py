"""Writing safetensors as any other file is written.

Killed, the library's own `save_file` leaves a file of a random name, which no rerun would clear,
and its error on a full disk is none of the system's.
"""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors, contiguous or not, by name; OSError where that fails."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(contiguous, metadata=None if metadata is None else dict(metadata)))
