"""Pickled arrays by name: `{"model": {key: array}}` of airsplay and of detectron2's model zoo."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.data.files.pickles import Interpreter, UnsafeError


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Return the arrays below "model" as float32 tensors by name.

    Raises WeightsError where the pickle is unsafe or damaged, or has other content.
    """
    content = load_arrays(path)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise WeightsError(
            f"pickle {path.name!r} has no 'model' of arrays by name; "
            "name a .pkl of airsplay or detectron2, or a safetensors file"
        )
    converted: dict[int, Tensor] = {}  # an array that a pickle repeats takes memory once
    for key, value in model.items():
        if not key.endswith("num_batches_tracked") and id(value) not in converted:
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
                raise WeightsError(
                    f"{key!r} in {path.name!r} is {kind}, not an array of floats; "
                    "download the file again"
                )
            converted[id(value)] = torch.from_numpy(np.array(value, dtype=np.float32))
    return {key: converted[id(value)] for key, value in model.items() if id(value) in converted}


def load_arrays(path: Path) -> object:
    """Return the containers, numbers, texts and arrays of a pickle; dictionaries have text keys.

    Raises WeightsError where the pickle refers to anything else or is damaged.
    """
    content = path.read_bytes()
    try:
        return Interpreter().run(content)
    except UnsafeError as error:
        raise WeightsError(
            f"pickle {path.name!r} is unsafe: it refers to {str(error)!r}, and nothing of it was "
            "run; do not use this file"
        ) from error
    except Exception as error:  # damaged opcodes raise any built-in error
        raise WeightsError(
            f"pickle {path.name!r} is damaged: {error}; download it again"
        ) from error
