import gzip
import json
from pathlib import Path

import pytest

from a2cap.data.annotations.read import (
    Caption,
    check_skip_limit,
    read_annotations,
    resolve_files,
    tokenize,
)
from a2cap.data.files.sealed_folder import SkippedItem
from tests.data.annotations.documents import GOOD, karpathy, read_karpathy, reasons, sentence
from tests.data.messages import message_of, touch, written

SHARED = Path(__file__).parents[3].parent / "shared" / "coco"
needs_shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="the COCO sample folder is missing"),
    pytest.mark.slow,
]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sentence(""), "empty"),
        (sentence(" .!\n"), "empty"),
        (3, "int, not a string"),
        ({}, "dict, not a string"),
        ({"raw": 3, "tokens": ["a"]}, "int, not a string"),
        ("['a dog', 'a cat']", "a list that was written as text: \"['a dog', 'a cat']\""),
        ({"raw": "A", "tokens": "a"}, "'tokens' is not a list"),
        ({"raw": "A", "tokens": [1]}, "'tokens' is not a list of words without white space"),
        ({"raw": "A", "tokens": ["a b"]}, "'tokens' is not a list of words without white space"),
        ({"raw": "A", "tokens": ["a", ""]}, "'tokens' is not a list of words without white space"),
        (sentence("a" * 10_001), "10,001 characters, at most 10,000 are read"),
        pytest.param(
            sentence("dogs " * 2_000_000),
            "10,000,000 characters, at most 10,000 are read",
            marks=pytest.mark.slow,
        ),
        ({"raw": "a", "tokens": ["a" * 10_001]}, "10,001 characters, at most 10,000 are read"),
        ({"raw": "\ud800", "tokens": ["a"]}, "not valid Unicode"),
    ],
)
def test_one_bad_caption_is_skipped_and_the_image_kept(tmp_path, bad, reason):
    read = read_karpathy(tmp_path, karpathy(sentences=[sentence("A dog"), bad]))
    assert read.images[0].captions == (Caption("A dog", ("a", "dog")),)
    assert reasons(read) == [("000000000042", f"caption 1: {reason}")]


def test_an_image_whose_captions_are_all_bad_is_skipped_too(tmp_path):
    assert reasons(read_karpathy(tmp_path, karpathy(sentences=[sentence("")]), GOOD)) == [
        ("000000000042", "caption 0: empty"),
        ("000000000042", "no caption"),
    ]


def test_a_caption_of_ten_thousand_characters_is_read(tmp_path):
    read = read_karpathy(tmp_path, karpathy(sentences=[sentence("a" * 10_000)]))
    assert read.skipped == ()


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("A brown bear's face.", ("a", "brown", "bears", "face")),
        ("a twin-hulled, his/her boat", ("a", "twin", "hulled", "his", "her", "boat")),
        ('"Go!" #1 (a & b): $5; why?', ("go", "#1", "a", "&", "b):", "$5", "why")),
        ("  two\n spaces\u3000", ("two", "spaces")),
        ("«Café» naïve", ("«café»", "naïve")),
        ("?!", ()),
    ],
)
def test_raw_captions_become_tokens_by_the_rule_of_karpathys_file(raw, tokens):
    assert tokenize(raw) == tokens


@pytest.mark.parametrize(
    ("total", "limit"), [(3, 1), (20, 1), (100, 5), (200, 10), (10_999, 10), (20_000, 20)]
)
def test_up_to_ten_or_a_thousandth_of_the_items_may_be_skipped(total, limit):
    skipped = [SkippedItem(f"p{number}", "empty") for number in range(limit + 1)]
    check_skip_limit(skipped[:-1], total, "images")
    assert message_of(check_skip_limit, skipped, total, "images") == (
        f"{limit + 1} of {total:,} images cannot be used, at most {limit} may be left out: "
        + ", ".join(f"'p{number}' (empty)" for number in range(min(limit + 1, 5)))
        + ", …; fix or remove them"
    )


def resolve(folder, *files):
    """Resolve files, each with its index as id."""
    return resolve_files({str(number): file for number, file in enumerate(files)}, folder)


def test_an_image_is_found_under_its_name_or_its_last_part_that_no_other_has(tmp_path):
    folder = tmp_path / "images"
    touch(folder, "val2014/a.jpg", "b.jpg")
    found = resolve(folder, "val2014/a.jpg", "val2014/b.jpg", "c.jpg")
    assert found == {"0": folder / "val2014/a.jpg", "1": folder / "b.jpg"}
    assert resolve(folder, "x/b.jpg", "y/b.jpg") == {}
    assert resolve(folder, "val2014") == resolve(tmp_path, folder.name) == {}


def test_a_2014_name_is_found_in_a_folder_of_2017_names(tmp_path):
    touch(tmp_path, "val2017/000000000042.jpg")
    names = {"000000000042": "val2014/COCO_val2014_000000000042.jpg", "7": "7.jpg"}
    assert resolve_files(names, tmp_path) == {"000000000042": tmp_path / "val2017/000000000042.jpg"}


def test_images_in_folders_that_repeat_numbers_have_their_paths_as_ids(tmp_path):
    names = ["cats/001.jpg", "dogs/001.jpg", "COCO_val2014_000000000042.jpg"]
    touch(tmp_path, *names)
    rows = [{"image": name, "captions": ["a dog"], "split": "train"} for name in names]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    ids = ["cats/001", "dogs/001", "COCO_val2014_000000000042"]
    found = read_annotations(written(tmp_path, lines, "captions.jsonl"), rule="path").images
    assert [image.image_id for image in found] == ids
    files = resolve_files({image.image_id: image.file for image in found}, tmp_path, "path")
    assert files == {identity: tmp_path / name for identity, name in zip(ids, names, strict=True)}
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    texts = [{"id": n, "image_id": n, "caption": "a dog"} for n in range(3)]
    coco = written(tmp_path, {"images": images, "annotations": texts}, "coco.json")
    splits = written(tmp_path, {"train": ids[:1], "val": names[1:2], "test": names[2:]}, "splits")
    read = read_annotations(coco, split_list=splits, rule="path").images
    assert [(image.image_id, image.split) for image in read] == list(
        zip(ids, ("train", "val", "test"), strict=True)
    )


def test_the_folder_is_scanned_once_and_only_if_a_name_is_not_found(tmp_path, monkeypatch):
    scanned = []
    monkeypatch.setattr(
        "a2cap.data.annotations.read.find_images",
        lambda folder, rule: scanned.append(folder) or {"1": folder / "x.jpg"},
    )
    touch(tmp_path, "a.jpg", "a.png")
    assert resolve(tmp_path, "a.jpg") == {"0": tmp_path / "a.jpg"}
    assert scanned == []
    found = resolve(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    assert found == {"0": tmp_path / "a.jpg", "1": tmp_path / "x.jpg"}
    assert scanned == [tmp_path]


def test_links_in_the_image_folder_are_followed(tmp_path):
    folder, outside = tmp_path / "images", tmp_path / "outside"
    touch(folder, "real.jpg")
    touch(outside, "COCO_val2014_42.jpg")
    (folder / "out.jpg").symlink_to(outside / "COCO_val2014_42.jpg")
    (folder / "val2014").symlink_to(outside)  # a COCO folder kept elsewhere
    (folder / "broken.jpg").symlink_to(folder / "nowhere.jpg")
    files = ("out.jpg", "val2014/COCO_val2014_42.jpg", "broken.jpg")
    found = resolve(folder, *files, "a\0b.jpg", "x" * 300 + ".jpg")
    assert found == {"0": folder / files[0], "1": folder / files[1]}


class TestOnSharedCoco:
    pytestmark = needs_shared

    def test_every_image_of_the_karpathy_sample_is_read_and_found(self):
        read = read_annotations(SHARED / "dataset_coco.json")
        assert (len(read.images), read.skipped) == (345, ())
        files = {image.image_id: image.file for image in read.images}
        assert len(resolve_files(files, SHARED / "images")) == 345

    def test_coco_captions_of_2017_are_read_with_a_split_list(self, tmp_path):
        path = SHARED / "text/captions_val2017.json.gz"
        document = json.loads(gzip.decompress(path.read_bytes()))
        names = [item["file_name"] for item in document["images"]]
        splits = written(tmp_path, {"train": names[:4000], "val": names[4000:]}, "splits.json")
        read = read_annotations(path, split_list=splits)
        assert (len(read.images), read.skipped) == (5000, ())
        assert sum(len(image.captions) for image in read.images) == 25_014
