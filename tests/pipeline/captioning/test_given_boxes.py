"""Which boxes of a file belong to which image: by the path that an image has there."""

import json
from pathlib import Path

import pytest

from a2cap.data.errors import InputError
from a2cap.pipeline.captioning.given_boxes import GivenBoxes
from a2cap.pipeline.captioning.named_image import NamedImage


@pytest.fixture
def given(tmp_path):
    """Boxes of images of these names; the first x1 is the place in the list."""

    def write(*names):
        images = [{"id": place, "file_name": name} for place, name in enumerate(names)]
        annotations = [
            {"id": place, "image_id": place, "bbox": [place, 0, 5, 5]}
            for place in range(len(names))
        ]
        path = tmp_path / "boxes.json"
        path.write_text(json.dumps({"images": images, "annotations": annotations}))
        return GivenBoxes(path)

    return write


def place(given, path, relative=None):
    image = NamedImage(Path(path), None if relative is None else Path(relative))
    return int(given.find(image)[0, 0])


def refusal(given, path):
    with pytest.raises(InputError) as raised:
        given.find(NamedImage(Path(path)))
    return str(raised.value)


def test_an_image_has_the_boxes_of_the_name_in_which_its_path_ends(given):
    boxes = given("cat.jpg", "pets/dog.jpg", "wild/dog.jpg")
    assert place(boxes, "/photos/cat.png") == 0
    assert place(boxes, "/photos/pets/dog.jpg") == 1
    assert place(boxes, "/photos/pets/../wild/./dog.jpg") == 2


def test_a_relative_path_counts_from_the_working_directory(given, tmp_path, monkeypatch):
    (tmp_path / "wild").mkdir()
    monkeypatch.chdir(tmp_path / "wild")
    assert place(given("pets/dog.jpg", "wild/dog.jpg"), "dog.jpg") == 1


def test_coco_s_numbers_fit_in_any_folder(given):
    boxes = given("COCO_val2014_000000000042.jpg")
    assert place(boxes, "/anywhere/42.jpg") == 0
    assert place(boxes, "/val2017/000000000042.jpg") == 0


def test_composed_and_decomposed_names_are_the_same(given):
    assert place(given("Émile.jpg"), "/photos/E\u0301mile.jpg") == 0


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


def test_an_image_whose_path_fits_two_names_is_refused(given):
    boxes = given("dog.jpg", "pets/dog.jpg")
    assert refusal(boxes, "/photos/pets/dog.jpg") == (
        f"unclear which boxes belong to '/photos/pets/dog.jpg': {str(boxes.path)!r} has "
        "'dog' and 'pets/dog'; name the folder that these are relative to instead of the image"
    )


def test_the_path_in_a_folder_that_is_named_decides(given):
    boxes = given("dog.jpg", "pets/dog.jpg")
    assert place(boxes, "/photos/pets/dog.jpg", "pets/dog.jpg") == 1
    assert place(boxes, "/photos/pets/dog.jpg", "dog.jpg") == 0


def test_a_folder_within_that_of_the_file_fits_too(given):
    assert place(given("cat.jpg", "pets/dog.jpg"), "/photos/pets/dog.jpg", "dog.jpg") == 1


def test_folders_that_cannot_be_part_of_an_id_do_no_harm(given):
    long = "/".join(["folder"] * 100)
    assert place(given("dog.jpg"), f"/{long}/dog.jpg") == 0
    assert place(given("dog.jpg"), "/caf\udce9/dog.jpg") == 0
    assert refusal(given("dog.jpg"), "/photos/caf\udce9.jpg") == (
        "image path is not UTF-8: 'caf\\udce9.jpg'; rename the file"
    )
