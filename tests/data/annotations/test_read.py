import gzip
import json
from pathlib import Path

import pytest

from a2cap.data.annotations.caption import AnnotatedCaption, tokenize
from a2cap.data.annotations.read import read_annotations
from a2cap.data.image_ids import resolve_files
from tests.data.annotations.documents import GOOD, karpathy, read_karpathy, reasons, sentence
from tests.data.messages import touch, written

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
        ({}, "an object of nothing, not a text"),
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
    assert read.images[0].captions == (AnnotatedCaption("A dog", ("a", "dog")),)
    assert reasons(read) == [("000000000042", f"caption 1: {reason}")]


def test_an_image_whose_captions_are_all_bad_is_skipped_too(tmp_path):
    assert reasons(read_karpathy(tmp_path, karpathy(sentences=[sentence("")]), GOOD)) == [
        ("000000000042", "caption 0: empty"),
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


def test_images_in_folders_that_repeat_numbers_have_their_paths_as_ids(tmp_path):
    names = ["cats/001.jpg", "dogs/001.jpg", "COCO_val2014_000000000042.jpg"]
    touch(tmp_path, *names)
    rows = [{"image": name, "captions": ["a dog"], "split": "train"} for name in names]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    ids = ["cats/001", "dogs/001", "COCO_val2014_000000000042"]
    listed = read_annotations(written(tmp_path, lines, "captions.jsonl"), rule="path").images
    assert [image.image_id for image in listed] == ids
    files = resolve_files({image.image_id: image.file for image in listed}, tmp_path, "path")
    assert files == {identity: tmp_path / name for identity, name in zip(ids, names, strict=True)}
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    texts = [{"id": n, "image_id": n, "caption": "a dog"} for n in range(3)]
    coco = written(tmp_path, {"images": images, "annotations": texts}, "coco.json")
    splits = written(tmp_path, {"train": ids[:1], "val": names[1:2], "test": names[2:]}, "splits")
    read = read_annotations(coco, split_list=splits, rule="path").images
    assert [(image.image_id, image.split) for image in read] == list(
        zip(ids, ("train", "val", "test"), strict=True)
    )


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
