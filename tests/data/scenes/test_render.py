"""Rendering: the same bytes from any number of threads."""

from pathlib import Path

import pytest

from a2cap.data.scenes.render import write_images
from a2cap.data.scenes.scene import make_scene


def drawn(folder: Path, *, workers: int | None, count: int = 70) -> dict[str, bytes]:
    folder.mkdir()
    planted = [0.0, 1.0] * (count // 2)
    advanced: list[int] = []
    scenes = write_images(
        folder, planted, seed=3, side=96, workers=workers, progress=advanced.append
    )
    assert advanced == [1] * count
    assert scenes == [
        make_scene(index, seed=3, side=96, planted=share) for index, share in enumerate(planted)
    ]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_images_do_not_depend_on_the_number_of_threads(tmp_path):
    alone, three, cores = (drawn(tmp_path / str(number), workers=number) for number in (1, 3, None))
    assert len(alone) == 70 and alone == three == cores


def test_an_error_ends_the_drawing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing/000000000001\.jpg"):
        write_images(tmp_path / "missing", [0.0] * 20_000, seed=0, side=96)
