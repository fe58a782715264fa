"""Data of the bundled captioner of photographs: mirror images and captions of similar images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from a2cap.data.annotations.instances import read_instances
from a2cap.data.annotations.read import read_annotations
from a2cap.data.captions.coco_objects import coco_words
from benchmarks import photos_data
from benchmarks.photos_data import Photo


def photo(number, *captions, split="train"):
    file = Path("train2014", f"COCO_train2014_{number:012}.jpg")
    return Photo(file, split, [caption.split() for caption in captions])


CAT = photo(1, "a cat to the left of a lamp", "a cat sleeps on a red bed")
DOG = photo(2, "a dog runs on the grass", "a brown dog runs after a ball")
BOTH = photo(4, "a dog runs after a cat", "a cat on a red bed")


def test_similar_captions_say_nearly_the_same_and_are_of_other_images(monkeypatch):
    monkeypatch.setattr(photos_data, "_CHUNK", 2)
    texts = {
        "a cat sleeps on a bed": 1,
        "a grey cat sleeps on a red bed": 7,
        "a red bed and a lamp": 8,
        "a train in a station": 9,
        "a dog runs after a red ball": 10,
        "a dog sleeps on the grass": 11,
        **{f"plane number {n} in the sky": 20 + n for n in range(20)},
    }
    similar = photos_data.similar_captions([CAT, DOG, BOTH], texts, least=0.05, most=1)
    lines = {file: [" ".join(words) for words in chosen] for file, chosen in similar.items()}
    assert lines[CAT.file][0] == "a grey cat sleeps on a red bed"
    assert "dog" in lines[DOG.file][0]
    more = photos_data.similar_captions([CAT, DOG, BOTH], texts, least=0.05, most=9)[CAT.file]
    assert ["a", "cat", "sleeps", "on", "a", "bed"] not in more  # of the same image


def test_captions_that_agree_most_are_kept_in_their_order():
    cats = photo(1, "a cat on a red bed", "a cat on a bed", "an odd thing happens")
    similar = {cats.file: [["a", "cat", "on", "a", "red", "bed"], ["a", "red", "train"]]}
    similar |= {DOG.file: [], BOTH.file: [["a", "dog"]]}
    agreeing = photos_data.agreeing_captions([cats, DOG, BOTH], similar, most=3)
    lines = {file: [" ".join(words) for words in chosen] for file, chosen in agreeing.items()}
    assert lines[cats.file] == ["a cat on a red bed", "a cat on a bed", "a cat on a red bed"]
    assert lines[DOG.file] == ["a dog runs on the grass", "a brown dog runs after a ball"]
    assert len(lines[BOTH.file]) == 3


def test_texts_are_read_without_the_images_held_out(monkeypatch):
    captions = {
        "train": {1: ["A Cat, asleep on a bed."], 2: ["too short"]},
        "val": {3: ["a dog runs on the grass"], 4: ["a cat asleep on a bed"]},
    }
    monkeypatch.setattr(photos_data, "coco_captions", captions.__getitem__)
    assert photos_data.read_texts(without={3}) == {"a cat asleep on a bed": 1}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "photos" / "train2014").mkdir(parents=True)
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:, :20] = 255
    Image.fromarray(pixels).save(tmp_path / "photos" / CAT.file, quality=95)
    return tmp_path / "photos"


def test_training_photographs_get_a_mirror_image(source, tmp_path):
    photos_data.write_images([CAT], source, tmp_path / "images")
    whole, mirror = (
        np.asarray(Image.open(tmp_path / "images" / view.file)).astype(int)
        for view in (CAT, CAT.mirrored())
    )
    assert np.abs(whole - mirror[:, ::-1]).max() < 10


def test_annotations_have_the_mirror_image_of_each_training_image(tmp_path):
    held_out = photo(3, "a man to the right", split="val")
    captions = {CAT.file: [*CAT.captions, ["a", "cat"]]}
    photos_data.write_annotations(tmp_path / "a.json", [CAT, held_out], captions, dataset="cats")
    annotations = read_annotations(tmp_path / "a.json")
    texts = [[caption.raw for caption in image.captions] for image in annotations.images]
    assert [image.split for image in annotations.images] == ["train", "train", "val"]
    assert texts[1] == ["a cat to the right of a lamp", "a cat sleeps on a red bed", "a cat"]
    assert texts[2] == ["a man to the right"]
    assert annotations.dataset == "cats"


def test_the_table_is_read_image_by_image(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text(
        f'image,caption,split\n{CAT.file},"A cat, asleep.",train\n{CAT.file},Its bed,train\n'
    )
    [listed] = photos_data.read_photos(path)
    assert (listed.number, listed.captions) == (1, [["a", "cat", "asleep"], ["its", "bed"]])


def test_the_drawn_boxes_are_of_coco_categories_and_inside_their_photographs():
    images = read_instances(Path(photos_data.__file__).with_name("photo_boxes.json"))
    names = {name for image in images.values() for name in image.names}
    assert len(images) == 59
    assert sum(len(image.boxes) for image in images.values()) == 152
    assert names <= set(coco_words().categories.values())
    for image in images.values():
        assert image.size == (256, 256)
        assert (image.boxes[:, 2:] > image.boxes[:, :2]).all()
        assert image.boxes.min() >= 0
        assert image.boxes.max() <= 256
