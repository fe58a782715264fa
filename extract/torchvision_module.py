"""torchvision, whose build may not fit that of torch."""

from importlib import import_module
from types import ModuleType

import torch

from a2cap.data.errors import A2Error


def torchvision_module(name: str) -> ModuleType:
    """Import a module of torchvision by its name there, such as "ops".

    Raises A2Error where the builds differ, one for the CPU and one for CUDA.
    """
    try:
        return import_module(f"torchvision.{name}")
    except (ImportError, RuntimeError, AttributeError) as error:
        raise A2Error(
            f"torchvision does not fit torch {torch.__version__}: {error}; "
            "install both from the same index, both for CPU or both for the same CUDA"
        ) from error
