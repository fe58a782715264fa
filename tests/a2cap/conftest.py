"""The finished experiment of the pipeline's tests, and images of a scene."""

import pytest
from PIL import Image

from tests.pipeline.conftest import experiment

__all__ = ["experiment"]


@pytest.fixture
def scene(experiment):
    """Return the path of one image of the experiment."""
    return min((experiment.scenes / "images").iterdir())


@pytest.fixture
def rgba(scene, tmp_path):
    """Return the path of a PNG whose left half is transparent."""
    image = Image.open(scene).convert("RGBA")
    image.paste((9, 9, 9, 0), (0, 0, image.width // 2, image.height))
    image.save(tmp_path / "half.png")
    return tmp_path / "half.png"
