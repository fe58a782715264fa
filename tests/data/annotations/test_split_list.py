import pytest

from a2cap.data.annotations.split_list import read_keys, read_split_list
from tests.data.messages import message_of, written


@pytest.mark.parametrize(
    "content",
    [
        {"train": [42, "a/v1.5"], "val": ["COCO_val2014_000000000007.jpg"], "test": ["my image"]},
        {"train": [42], "restval": [42, "a/v1.5"], "val": [7], "test": ["my image.jpg"]},
        "42 train\n\na/v1.5\ttrain\n7.png val\nmy image.jpg test\n42 restval\n",
    ],
)
def test_a_list_of_ids_or_file_names_is_read_as_json_or_lines(tmp_path, content):
    assert read_split_list(written(tmp_path, content)) == {
        "000000000042": "train",
        "a/v1.5": "train",
        "000000000007": "val",
        "my image": "test",
    }


@pytest.mark.parametrize(
    "names",
    [
        ("Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt", "Flickr_8k.testImages.txt"),
        ("train.txt", "val.txt", "test.txt"),
    ],
)
def test_a_folder_has_a_file_of_images_for_each_split(tmp_path, names):
    (tmp_path / "Flickr8k.token.txt").write_text("no list")
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"{number}_dog.jpg\n\n{number}_cat.jpg\n")
    assert read_split_list(tmp_path) == {
        f"{number}_{animal}": split
        for number, split in enumerate(("train", "val", "test"))
        for animal in ("dog", "cat")
    }


def test_a_folder_without_split_files_is_rejected(tmp_path):
    (tmp_path / "readme.txt").write_text("")
    assert message_of(read_split_list, tmp_path) == (
        f"no split files in {str(tmp_path)!r}; put Flickr_8k.trainImages.txt and the like, or "
        "train.txt, val.txt and test.txt into it"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": [1]}, "unknown split 'x' in {name}; use train, val, test or restval"),
        ("1 x", "unknown split 'x' in {name}; use train, val, test or restval"),
        (
            {"train": [1], "val": ["000000000001.jpg"]},
            "image '000000000001' is in two splits of {name} ('train' and 'val'); keep one",
        ),
        ({"train": []}, "no images in the split list {name}; name at least one"),
        ("", "no images in the split list {name}; name at least one"),
        ([1, 2], "split list {name} is not a JSON object; write it as {{split: [ids]}}"),
        ({"train": 5}, "split 'train' in {name} is not a list; write it as {{split: [ids]}}"),
        ({"train": [1.5]}, "split 'train' in {name} contains 1.5; use ids or file names"),
        (
            "1 train\n2",
            "line 2 of {name} is not 'id split': '2'; fix that line, or name the folder that has a "
            "list of each split",
        ),
    ],
)
def test_a_list_without_one_split_per_image_is_rejected(tmp_path, content, message):
    path = written(tmp_path, content)
    assert message_of(read_split_list, path) == message.format(name=repr(str(path)))


def test_names_are_read_line_by_line(tmp_path):
    lines = "61\n\n  VG_100K/62.jpg xml/62.xml\nCOCO_val2014_000000000063.jpg 63\nmy image.png\n"
    path = written(tmp_path, lines + "a/v1.5\n61\n")
    names = ["61", "VG_100K/62.jpg", "COCO_val2014_000000000063.jpg", "my image.png", "a/v1.5"]
    assert read_keys(path) == [*names, "61"]


def test_a_list_without_ids_is_rejected(tmp_path):
    path = written(tmp_path, " \n")
    message = f"no images in the list {str(path)!r}; write one id per line"
    assert message_of(read_keys, path) == message
