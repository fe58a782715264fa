"""Pickled arrays by name: `{"model": {key: array}}` of airsplay and of detectron2's model zoo."""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from a2cap.data.errors import WeightsError

_reconstruct: Callable[..., object] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old protocols; other codecs are not looked up."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _latin1_bytes,
    ("collections", "OrderedDict"): OrderedDict,
}
"""Everything that a pickle may name."""


class _ForbiddenName(Exception):
    """A pickle names something beyond numpy arrays."""


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenName(f"{module}.{name}") from None


def load_arrays(path: Path) -> object:
    """Whatever containers, numbers, texts and arrays a pickle holds.

    Pickles of Python 2 are read as latin-1, as numpy's were written. Raises WeightsError for a
    pickle that names anything else, before that is looked up, and for one that is damaged.
    """
    try:
        with path.open("rb") as stream:
            return _ArrayUnpickler(stream, encoding="latin1").load()
    except _ForbiddenName as error:
        raise WeightsError(
            f"pickle {path.name!r} wants to run {str(error)!r}, which is no numpy array; "
            "nothing of it was run, do not use this file"
        ) from error
    except Exception as error:  # damaged opcodes raise any built-in error
        raise WeightsError(
            f"pickle {path.name!r} is damaged: {error}; download it again"
        ) from error


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
