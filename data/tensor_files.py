"""Writing safetensors, where a full disk is an OSError as for any other file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_NUMBER = re.compile(r"\(os error (\d+)\)")


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors, contiguous or not, by name; OSError, naming the file, where that fails."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        number = _NUMBER.search(str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
