"""Rendering: a file per scene, in order, and an error that ends it."""

import pytest

from a2cap.data.scenes.render import write_images
from a2cap.data.scenes.scene import make_scene


def test_each_scene_has_a_file_and_is_counted(tmp_path):
    advanced: list[int] = []
    planted = [0.0, 1.0] * 3
    scenes = write_images(tmp_path, planted, seed=3, side=96, progress=advanced.append)
    assert advanced == [1] * len(planted)
    assert scenes == [
        make_scene(index, seed=3, side=96, planted=share) for index, share in enumerate(planted)
    ]
    assert {path.name for path in tmp_path.iterdir()} == {scene.file_name for scene in scenes}


def test_an_error_ends_the_drawing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing/000000000001\.jpg"):
        write_images(tmp_path / "missing", [0.0] * 20_000, seed=0, side=96)
