"""Matching of user-supplied boxes to images by path."""

import json
from pathlib import Path

import pytest

from a2cap.pipeline.captioning.named_images import GivenBoxes, NamedImage
from tests.data.messages import message_of


@pytest.fixture
def given(tmp_path):
    """Boxes of images of these names; the first x1 is the index in the list."""

    def write(*names):
        images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
        annotations = [
            {"id": number, "image_id": number, "bbox": [number, 0, 5, 5]}
            for number in range(len(names))
        ]
        path = tmp_path / "boxes.json"
        path.write_text(json.dumps({"images": images, "annotations": annotations}))
        return GivenBoxes(path)

    return write


def index_of(given, path, relative=None):
    image = NamedImage(Path(path), None if relative is None else Path(relative))
    return int(given.find(image).boxes[0, 0])


def refusal(given, path):
    return message_of(given.find, NamedImage(Path(path)))


DOGS, BOTH = ("cat.jpg", "pets/dog.jpg", "wild/dog.jpg"), ("dog.jpg", "pets/dog.jpg")
COCO = ("COCO_val2014_000000000042.jpg", "Émile.jpg")


@pytest.mark.parametrize(
    ("names", "path", "relative", "index"),
    [
        (DOGS, "/photos/cat.png", None, 0),
        (DOGS, "/photos/pets/dog.jpg", None, 1),
        (DOGS, "/photos/pets/../wild/./dog.jpg", None, 2),
        (DOGS, "dog.jpg", None, 2),  # a relative path starts at the working directory
        (COCO, "/anywhere/42.jpg", None, 0),
        (COCO, "/val2017/000000000042.jpg", None, 0),
        (COCO, "/photos/E\u0301mile.jpg", None, 1),
        (BOTH, "/photos/pets/dog.jpg", "pets/dog.jpg", 1),  # the path in a named folder
        (BOTH, "/photos/pets/dog.jpg", "dog.jpg", 0),
        (DOGS[:2], "/photos/pets/dog.jpg", "dog.jpg", 1),  # of which it is a subfolder
    ],
)
def test_an_image_has_the_boxes_of_the_id_that_its_path_ends_with(
    given, tmp_path, monkeypatch, names, path, relative, index
):
    (tmp_path / "wild").mkdir()
    monkeypatch.chdir(tmp_path / "wild")
    assert index_of(given(*names), path, relative) == index


def test_an_image_of_another_folder_has_no_boxes(given, tmp_path):
    boxes = given("pets/dog.jpg", "wild/dog.jpg", "cat.jpg")
    assert refusal(boxes, "/photos/dog.jpg") == (
        f"no boxes for image '/photos/dog.jpg' in {str(boxes.path)!r}, "
        "which has 'pets/dog', 'wild/dog'; name the image by the path that it has there"
    )
    assert refusal(boxes, "/photos/bird.jpg") == (
        f"no boxes for image '/photos/bird.jpg' in {str(boxes.path)!r}; "
        "add it to 'images' there, by its file name"
    )


def test_a_path_that_matches_two_ids_is_rejected(given):
    boxes = given("dog.jpg", "pets/dog.jpg")
    assert refusal(boxes, "/photos/pets/dog.jpg") == (
        f"unclear which boxes belong to '/photos/pets/dog.jpg': {str(boxes.path)!r} has "
        "'dog' and 'pets/dog'; name the folder that these are relative to instead of the image"
    )


def test_folders_that_are_not_valid_in_ids_are_ignored(given):
    long = "/".join(["folder"] * 100)
    assert index_of(given("dog.jpg"), f"/{long}/dog.jpg") == 0
    assert index_of(given("dog.jpg"), "/caf\udce9/dog.jpg") == 0
    assert refusal(given("dog.jpg"), "/photos/caf\udce9.jpg") == (
        "image path is not UTF-8: 'caf\\udce9.jpg'; rename the file"
    )
