"""Pickled arrays by name: `{"model": {key: array}}` of airsplay and of detectron2's model zoo."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.extract.weights.unpickle import load_arrays


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors by name, float32, of a pickle whose "model" holds them.

    Raises WeightsError where the pickle is not safe, damaged, or holds something else.
    """
    content = load_arrays(path)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise WeightsError(
            f"pickle {path.name!r} has no 'model' of arrays by name; "
            "name a .pkl of airsplay or detectron2, or a safetensors file"
        )
    return {
        str(key): _float_tensor(value, key=str(key), name=path.name)
        for key, value in model.items()
        if not str(key).endswith("num_batches_tracked")
    }


def _float_tensor(value: object, *, key: str, name: str) -> Tensor:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise WeightsError(
            f"{key!r} in {name!r} is {kind}, not an array of floats; download the file again"
        )
    return torch.from_numpy(np.array(value, dtype=np.float32))
