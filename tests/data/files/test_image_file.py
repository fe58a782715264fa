import ast
from pathlib import Path

import pytest
from PIL import EpsImagePlugin, Image, UnidentifiedImageError

from a2cap.data.files.image_file import open_image

ROOT = Path(__file__).parents[3]
SOURCES = [
    path for box in ("data", "extract", "model", "pipeline") for path in (ROOT / box).rglob("*.py")
]


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "MPO"])
def test_supported_formats_are_opened_whatever_the_suffix(tmp_path, name):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.dat", format=name)
    with open_image(tmp_path / "a.dat") as image:
        assert image.size == (8, 6)


def test_postscript_named_as_an_image_starts_no_program(tmp_path, monkeypatch):
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", format="EPS")
    assert (tmp_path / "a.jpg").read_bytes().startswith(b"%!PS")
    with pytest.raises(UnidentifiedImageError):
        open_image(tmp_path / "a.jpg").load()
    assert started == []


@pytest.mark.parametrize("name", ["PPM", "ICO", "TGA", "PCX"])
def test_other_formats_of_pillow_are_refused(tmp_path, name):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png", format=name)
    with pytest.raises(UnidentifiedImageError):
        open_image(tmp_path / "a.png")


@pytest.mark.slow
def test_images_are_opened_by_this_function_alone():
    openers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "cv2.imread")
    }
    assert openers == {"data/files/image_file.py"}
