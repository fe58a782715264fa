"""Libraries that compute features; readers of records load none of these."""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

import cv2
import numpy as np
import PIL
import torch

from a2cap.data.errors import A2Error


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries, and the number of CPU threads."""
    return {
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "opencv": cv2.__version__,
        "pillow": PIL.__version__,
        "numpy": np.__version__,
        # one thread and several differ in the last digits, boxes by some 1e-4 pixels
        "threads": str(torch.get_num_threads()),
    }


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
