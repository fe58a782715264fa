"""Karpathy's file rebuilt: its content on small files, and its published words on all of COCO."""

import hashlib
import json
from collections import Counter

from a2cap.data.annotations.karpathy_writer import write_karpathy
from a2cap.data.annotations.read import read_annotations
from a2cap.data.annotations.split_list import read_keys
from tests.data.coco2014 import FULL_SIZE, SPLITS, official_captions
from tests.data.messages import bad_item, message_of, written


def captions(folder, split, *numbers, **changes):
    """Write a caption file with one caption per image."""
    images = [{"id": n, "file_name": f"COCO_{split}2014_{n:012d}.jpg"} for n in numbers]
    texts = [{"id": 100 + n, "image_id": n, "caption": f"Twin-beds, no. {n}!"} for n in numbers]
    document = {"images": images, "annotations": texts} | changes
    return written(folder, document, f"captions_{split}2014.json")


def rebuilt(folder, *annotations, val=("000000000007",), test=("000000000042",)):
    target = folder / "dataset_coco.json"
    counts = write_karpathy(annotations, target, val=val, test=test)
    return json.loads(target.read_text()), counts


def test_the_file_has_karpathys_members_with_val2014_first(tmp_path):
    train, val = captions(tmp_path, "train", 9), captions(tmp_path, "val", 42, 3, 7)
    document, counts = rebuilt(tmp_path, train, val)
    assert list(document) == ["images", "dataset"] and document["dataset"] == "coco"
    assert document["images"][0] == {
        "filepath": "val2014",
        "sentids": [142],
        "filename": "COCO_val2014_000000000042.jpg",
        "imgid": 0,
        "split": "test",
        "sentences": [
            {
                "tokens": ["twin", "beds", "no", "42"],
                "raw": "Twin-beds, no. 42!",
                "imgid": 0,
                "sentid": 142,
            }
        ],
        "cocoid": 42,
    }
    entries = [(image["cocoid"], image["imgid"], image["split"]) for image in document["images"]]
    assert entries == [(42, 0, "test"), (3, 1, "restval"), (7, 2, "val"), (9, 3, "train")]
    assert counts == {"test": 1, "restval": 1, "val": 1, "train": 1, "captions": 4}


def test_the_file_is_read_as_the_official_captions_are(tmp_path):
    path = captions(tmp_path, "val", 42, 3, 7)
    splits = written(tmp_path, {"test": [42], "val": [7], "restval": [3]}, "splits.json")
    rebuilt(tmp_path, path)
    read, official = (
        read_annotations(tmp_path / "dataset_coco.json"),
        read_annotations(path, split_list=splits),
    )
    assert [(p.image_id, p.split, p.captions) for p in read.images] == [
        (p.image_id, p.split, p.captions) for p in official.images
    ]


def test_lists_name_images_by_their_files_or_by_their_own_ids(tmp_path):
    images = [{"id": own, "file_name": f"{n:03d}.jpg"} for n, own in ((1, 3), (2, 90), (3, 1))]
    path = captions(tmp_path, "val", 3, 90, 1, images=images)
    for val, test in ((["001.jpg"], ["2.jpg"]), (["001.jpg"], ["90"])):
        document, _ = rebuilt(tmp_path, path, val=val, test=test)
        splits = {image["filename"]: image["split"] for image in document["images"]}
        assert splits == {"001.jpg": "val", "002.jpg": "test", "003.jpg": "train"}
    assert message_of(rebuilt, tmp_path, path, val=["1"], test=["2.jpg"]) == (
        "lines of the val list name an image '1', which the annotations give to the file "
        "'000000000003', while the file '000000000001' has id 3; list the names of files with "
        "their suffix"
    )


def test_bad_input_is_rejected_and_an_older_file_kept(tmp_path):
    path = captions(tmp_path, "val", 42, 7)
    rebuilt(tmp_path, path)
    before = (tmp_path / "dataset_coco.json").read_bytes()
    assert message_of(rebuilt, tmp_path, path, val=["000000000007", "000000000008"]) == (
        "1 images of the val and test lists are not in the captions: 000000000008; "
        "give captions_val2014.json too"
    )
    assert message_of(rebuilt, tmp_path, path, test=["000000000007"]) == (
        "images in both the val and the test list: 000000000007; keep one"
    )
    bad = captions(tmp_path, "train", 9, annotations=[{"id": 1, "image_id": 5, "caption": "x"}])
    assert message_of(rebuilt, tmp_path, path, bad) == bad_item(
        bad, "annotations[0]", "caption of an unknown image: 5"
    )
    again = written(tmp_path, json.loads(path.read_text()), "again.json")
    assert message_of(rebuilt, tmp_path, path, again) == bad_item(
        again, "images[0]", "duplicate image '000000000042'"
    )
    boxes = written(tmp_path, {"images": []}, "boxes.json")
    assert message_of(rebuilt, tmp_path, boxes) == (
        f"not COCO captions: {str(boxes)!r} (no key 'annotations'); give captions_*2014.json"
    )
    assert (tmp_path / "dataset_coco.json").read_bytes() == before


class TestOnAllCaptions:
    pytestmark = FULL_SIZE

    def test_the_words_have_the_published_order(self, tmp_path):
        val, test = (read_keys(SPLITS / f"karpathy_{split}_ids.txt") for split in ("val", "test"))
        document, counts = rebuilt(tmp_path, *official_captions(tmp_path), val=val, test=test)
        assert counts == {
            **{"train": 82_783, "restval": 30_504, "val": 5_000, "test": 5_000},
            "captions": 616_767,
        }
        words = Counter(
            word
            for image in document["images"]
            for sentence in image["sentences"]
            for word in sentence["tokens"]
        )
        # a Counter keeps the order of first occurrence
        frequent = "\n".join(word for word, count in words.items() if count > 5)
        assert hashlib.sha256(frequent.encode()).hexdigest() == (
            "a5338a8df870495b635439dbffbc9a1a0a54a6d5f6e9988108247e113ae0583c"
        )
        assert sum(count > 5 for count in words.values()) == 9_486
        assert sum(count > 4 for count in words.values()) == 10_368
        assert document["images"][0]["cocoid"] == 391895
        assert document["images"][0]["sentids"] == [770337, 771687, 772707, 776154, 781998]
