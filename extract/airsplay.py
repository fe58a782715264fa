"""Layout of airsplay/py-bottom-up-attention @85ec9b7: `faster_rcnn_from_caffe_attr.pkl`.

A pickled `{"model": {key: array}}` whose keys and class order are the canonical ones. What has to
be stated beside the tensors: detectron2's anchors, and box regression in its (10, 10, 5, 5).
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from a2.data.errors import WeightsError
from a2.extract.unpickle import load_arrays

ORIGIN = "airsplay faster_rcnn_from_caffe"
"""What the meta of converted weights names as their origin."""

_NOT_WEIGHTS = ("pixel_mean", "pixel_std", "num_batches_tracked")


def load_airsplay(path: Path) -> dict[str, Tensor]:
    """Canonical tensors, float32, of a pickle in airsplay's layout.

    Raises WeightsError where the pickle is not safe, damaged, or holds something else.
    """
    content = load_arrays(path)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise WeightsError(
            f"pickle {path.name!r} has no 'model' of arrays by name; "
            "name airsplay's faster_rcnn_from_caffe_attr.pkl, or a safetensors file"
        )
    return {
        str(key): _float_tensor(value, key=str(key), name=path.name)
        for key, value in model.items()
        if not str(key).endswith(_NOT_WEIGHTS)
    }


def _float_tensor(value: object, *, key: str, name: str) -> Tensor:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise WeightsError(
            f"{key!r} in {name!r} is {kind}, not an array of floats; download the file again"
        )
    return torch.from_numpy(np.array(value, dtype=np.float32))
