"""A detector small enough for quick tests, and images to show it."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.extract.tiny import TINY
from tests.random_detector import random_detector


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = Path(__file__).parents[2].parent / "shared"
    if not folder.is_dir():
        pytest.skip("the COCO sample folder is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def make_image():
    """make_image(seed, height, width): a smooth colour image, (H, W, 3) uint8 BGR."""

    def make(seed: int, height: int = 96, width: int = 128):
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)

    return make


@pytest.fixture(scope="session")
def detector(make_image):
    images = [make_image(1), make_image(2)]
    return random_detector(images, TINY, min_side=192, max_side=320, roi_size=7)


@pytest.fixture(scope="session")
def deep(make_image):
    """Return a detector with bottlenecks."""
    bottlenecks = replace(TINY, depth=50)
    return random_detector([make_image(1)], bottlenecks, min_side=192, max_side=320, roi_size=7)
