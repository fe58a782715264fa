"""What determines an image's features, to be stored beside them and compared later."""

import hashlib
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import PIL
import torch

from a2cap.extract.config import ExtractConfig

CODE_VERSION = 1
"""Raised by hand whenever extract/ would give another result for the same weights and image."""


def fingerprint(*, weights: Path, config: ExtractConfig) -> dict[str, object]:
    """The part that every extractor has in common, JSON-ready.

    Keys: weights_sha256, config (without the weights' path), code_version, libraries (versions).
    """
    return {
        "weights_sha256": _sha256(weights),
        "config": config.model_dump(mode="json", exclude={"weights"}),
        "code_version": CODE_VERSION,
        "libraries": {
            "torch": torch.__version__,
            "torchvision": version("torchvision"),
            "opencv": cv2.__version__,
            "pillow": PIL.__version__,
            "numpy": np.__version__,
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
