"""Versions of the libraries that compute features; readers of records load none of these."""

from importlib.metadata import version

import cv2
import numpy as np
import PIL
import torch


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
