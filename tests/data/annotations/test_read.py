import gzip
import json
from pathlib import Path

import pytest

from a2cap.data.annotations.read import (
    AnnotatedImage,
    Annotations,
    Caption,
    SkippedItem,
    check_skip_limit,
    read_annotations,
    resolve_images,
    tokenize,
)
from a2cap.data.errors import InputError

SHARED = Path(__file__).parents[3].parent / "shared" / "coco"
needs_shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="the COCO sample folder is not there"),
]


def sentence(raw: str) -> dict[str, object]:
    return {"raw": raw, "tokens": list(tokenize(raw))}


def karpathy(**changes: object) -> dict[str, object]:
    image = {
        "cocoid": 42,
        "filepath": "val2014",
        "filename": "COCO_val2014_000000000042.jpg",
        "split": "test",
        "sentences": [sentence("A dog.")],
    }
    image |= changes
    return {key: value for key, value in image.items() if value is not None}


GOOD = karpathy(filename="7.jpg", filepath="", split="train")
"""A second image, so that a bad first one is skipped and not the whole file refused."""


def written(folder: Path, document: object, name: str = "x.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def skips(folder: Path, *images: object) -> list[tuple[str, str]]:
    annotations = read_annotations(written(folder, {"images": [*images, GOOD]}))
    return [(item.image_id, item.reason) for item in annotations.skipped]


def refusal(path: Path, split_list: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read_annotations(path, split_list=split_list)
    return str(caught.value)


def test_a_karpathy_file_gives_images_with_its_own_tokens(tmp_path):
    image = karpathy(sentences=[{"raw": "A dog.", "tokens": ["a", "hound"]}])
    read = read_annotations(written(tmp_path, {"images": [image]}))
    assert read == Annotations(
        images=(
            AnnotatedImage(
                image_id="000000000042",
                file="val2014/COCO_val2014_000000000042.jpg",
                split="test",
                captions=(Caption("A dog.", ("a", "hound")),),
            ),
        ),
        skipped=(),
    )


@pytest.mark.parametrize("filepath", [None, ""])
def test_a_karpathy_file_without_folders_gives_the_bare_name(tmp_path, filepath):
    read = read_annotations(written(tmp_path, {"images": [karpathy(filepath=filepath)]}))
    assert read.images[0].file == "COCO_val2014_000000000042.jpg"


@pytest.mark.parametrize(
    ("named", "split"),
    [("train", "train"), ("restval", "train"), ("val", "val"), ("test", "test")],
)
def test_restval_counts_as_train(tmp_path, named, split):
    read = read_annotations(written(tmp_path, {"images": [karpathy(split=named)]}))
    assert read.images[0].split == split


def test_images_keep_the_order_of_the_file(tmp_path):
    images = [karpathy(filename=f"{number}.jpg") for number in (9, 3, 5)]
    read = read_annotations(written(tmp_path, {"images": images}))
    assert [image.image_id[-1] for image in read.images] == ["9", "3", "5"]


def test_gzipped_annotations_are_the_same(tmp_path):
    plain = written(tmp_path, {"images": [karpathy()]})
    zipped = tmp_path / "x.json.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_annotations(zipped) == read_annotations(plain)


COCO_IMAGES: list[object] = [
    {"id": 42, "file_name": "000000000042.jpg"},
    {"id": 7, "file_name": "a/b.jpg"},
]
COCO_CAPTIONS: list[object] = [
    {"id": 2, "image_id": 7, "caption": "A cat!"},
    {"id": 1, "image_id": 42, "caption": "A dog."},
    {"id": 3, "image_id": 42, "caption": "Two dogs"},
]


def coco(**changes: object) -> dict[str, object]:
    return {"images": COCO_IMAGES, "annotations": COCO_CAPTIONS} | changes


def coco_skips(folder: Path, **changes: object) -> list[tuple[str, str]]:
    splits = written(folder, {"train": [42, "a/b"]}, "splits.json")
    read = read_annotations(written(folder, coco(**changes)), split_list=splits)
    return [(item.image_id, item.reason) for item in read.skipped]


def test_coco_captions_with_a_split_list_give_the_same_kind_of_images(tmp_path):
    splits = written(tmp_path, "42 train\na/b.jpg val", "splits.txt")
    read = read_annotations(written(tmp_path, coco()), split_list=splits)
    assert read.skipped == ()
    assert read.images == (
        AnnotatedImage(
            "000000000042",
            "000000000042.jpg",
            "train",
            (Caption("A dog.", ("a", "dog")), Caption("Two dogs", ("two", "dogs"))),
        ),
        AnnotatedImage("a/b", "a/b.jpg", "val", (Caption("A cat!", ("a", "cat")),)),
    )


def test_coco_captions_without_a_split_list_are_refused(tmp_path):
    path = written(tmp_path, coco())
    assert refusal(path) == (
        f"the COCO captions {str(path)!r} do not name the splits; give data.split_list, "
        'a JSON file {"train": [ids or file names], "val": …, "test": …}'
    )


def test_coco_images_in_no_split_are_skipped(tmp_path):
    splits = written(tmp_path, {"train": [42]}, "splits.json")
    read = read_annotations(written(tmp_path, coco()), split_list=splits)
    assert [image.image_id for image in read.images] == ["000000000042"]
    assert read.skipped == (SkippedItem("a/b", "in no split"),)


def test_a_split_list_that_names_no_image_of_the_file_is_refused(tmp_path):
    splits = written(tmp_path, {"train": [1]}, "splits.json")
    path = written(tmp_path, coco())
    assert refusal(path, splits) == (
        f"none of the 2 images of {str(path)!r} is in the split list; "
        "give its own list as data.split_list"
    )


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [
        ({"images": [*COCO_IMAGES, {"id": 1}]}, ("images[2]", "no key 'file_name'")),
        (
            {"images": [*COCO_IMAGES, {"id": 42, "file_name": "c.jpg"}]},
            ("images[2]", "duplicate id 42, first used by '000000000042.jpg'"),
        ),
        (
            {"images": [*COCO_IMAGES, {"id": [1], "file_name": "c.jpg"}]},
            ("images[2]", "'id' is neither an integer nor a string"),
        ),
        (
            {"images": [*COCO_IMAGES, {"id": 1, "file_name": "/a.jpg"}]},
            (
                "images[2]",
                "image path is absolute: '/a.jpg'; give it relative to the image folder",
            ),
        ),
        (
            {"images": [*COCO_IMAGES, {"id": 1, "file_name": "42.jpg"}]},
            ("000000000042", "duplicate id, first used by '000000000042.jpg'"),
        ),
        (
            {"images": [*COCO_IMAGES, {"id": 1, "file_name": "x/42.jpg"}]},
            ("000000000042", "duplicate id, first used by '000000000042.jpg'"),
        ),
        (
            {"annotations": [*COCO_CAPTIONS, {"image_id": 5, "caption": "x"}]},
            ("annotations[3]", "caption of an unknown image: 5"),
        ),
        (
            {"annotations": [*COCO_CAPTIONS, {"image_id": 42}]},
            ("annotations[3]", "no key 'caption'"),
        ),
        (
            {"annotations": [*COCO_CAPTIONS, {"image_id": 42, "caption": {"raw": 1}}]},
            ("000000000042", "caption 2: dict, not a string"),
        ),
        (
            {"annotations": COCO_CAPTIONS[1:]},
            ("a/b", "no caption"),
        ),
    ],
)
def test_one_bad_coco_item_is_skipped(tmp_path, changes, skipped):
    assert coco_skips(tmp_path, **changes) == [skipped]


def test_a_jsonl_gives_one_image_for_each_line(tmp_path):
    lines = [
        '{"image": "a/b.jpg", "captions": ["A dog\u2028runs."], "split": "train"}',
        "",
        '{"captions": ["Two cats"], "split": "val", "image": "42.jpg", "by": "me"}',
    ]
    expected = Annotations(
        (
            AnnotatedImage(
                "a/b", "a/b.jpg", "train", (Caption("A dog\u2028runs.", ("a", "dog", "runs")),)
            ),
            AnnotatedImage(
                "000000000042", "42.jpg", "val", (Caption("Two cats", ("two", "cats")),)
            ),
        ),
        (),
    )
    assert read_annotations(written(tmp_path, "\n".join(lines), "captions.jsonl")) == expected
    assert read_annotations(written(tmp_path, "\r\n".join(lines), "captions.txt")) == expected


def test_bad_lines_of_a_jsonl_are_skipped_by_number(tmp_path):
    lines = [
        '{"image": "a.jpg", "captions": ["A dog"], "split": "train"}',
        '{"image": "b.jpg", "captions": [',
        '{"image": "c.jpg", "captions": "A dog", "split": "train"}',
        '{"image": "d.jpg", "captions": ["A dog"]}',
        '{"captions": ["A dog"], "split": "train"}',
        "[1]",
    ]
    read = read_annotations(written(tmp_path, "\n".join(lines), "captions.jsonl"))
    assert [image.image_id for image in read.images] == ["a"]
    assert read.skipped == (
        SkippedItem(
            "line 2",
            "not JSON: line 2 (line 1, column 33: Expecting value); fix the file or copy it again",
        ),
        SkippedItem("line 3", "'captions' is not a list"),
        SkippedItem("line 4", "no key 'split'"),
        SkippedItem("line 5", "no key 'image'"),
        SkippedItem("line 6", "not a JSON object"),
    )


@pytest.mark.parametrize(
    ("document", "name"),
    [({"images": [karpathy()]}, "x.json"), ('{"image": "a.jpg"}', "x.jsonl")],
)
def test_a_split_list_beside_annotations_with_splits_is_refused(tmp_path, document, name):
    path = written(tmp_path, document, name)
    assert refusal(path, written(tmp_path, {"train": [42]}, "splits.json")) == (
        f"{str(path)!r} already names the splits; remove data.split_list"
    )


@pytest.mark.parametrize(
    ("image", "skipped"),
    [
        (7, ("images[0]", "not a JSON object")),
        (karpathy(filename=None), ("images[0]", "no key 'filename'")),
        (karpathy(filename=3), ("images[0]", "'filename' is not a string")),
        (karpathy(filepath=3), ("images[0]", "'filepath' is not a string")),
        (karpathy(split=None), ("images[0]", "no key 'split'")),
        (karpathy(split="dev"), ("000000000042", "unknown split: 'dev'")),
        (karpathy(split=["train"]), ("000000000042", "unknown split: ['train']")),
        (karpathy(sentences=None), ("images[0]", "no key 'sentences'")),
        (karpathy(sentences="A dog"), ("images[0]", "'sentences' is not a list")),
        (karpathy(sentences=[]), ("000000000042", "no caption")),
        (
            karpathy(filepath="../../etc", filename="passwd"),
            (
                "images[0]",
                "image path leaves the image folder: '../../etc/passwd'; give it without '..'",
            ),
        ),
        (
            karpathy(filepath="", filename="/etc/passwd"),
            (
                "images[0]",
                "image path is absolute: '/etc/passwd'; give it relative to the image folder",
            ),
        ),
        (
            karpathy(filepath="", filename="a\0.jpg"),
            ("images[0]", "image path contains a NUL character: 'a\\x00.jpg'; rename the file"),
        ),
    ],
)
def test_one_bad_image_is_skipped_with_its_reason(tmp_path, image, skipped):
    assert skips(tmp_path, image) == [skipped]


def test_the_first_of_two_images_with_one_id_is_kept(tmp_path):
    again = karpathy(filename="000042.png", filepath="", split="train")
    read = read_annotations(written(tmp_path, {"images": [karpathy(), again]}))
    assert [image.split for image in read.images] == ["test"]
    assert read.skipped == (
        SkippedItem(
            "000000000042", "duplicate id, first used by 'val2014/COCO_val2014_000000000042.jpg'"
        ),
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sentence(""), "empty"),
        (sentence(" .!\n"), "empty"),
        ("A dog", "not a JSON object"),
        ({"tokens": ["a"]}, "no key 'raw'"),
        ({"raw": "A"}, "no key 'tokens'"),
        ({"raw": None, "tokens": ["a"]}, "NoneType, not a string"),
        ({"raw": "A", "tokens": "a"}, "'tokens' is not a list"),
        ({"raw": "A", "tokens": [1]}, "'tokens' is not a list of words without white space"),
        ({"raw": "A", "tokens": ["a b"]}, "'tokens' is not a list of words without white space"),
        ({"raw": "A", "tokens": ["a", ""]}, "'tokens' is not a list of words without white space"),
        (sentence("a" * 10_001), "10,001 characters, at most 10,000 are read"),
        (sentence("dogs " * 2_000_000), "10,000,000 characters, at most 10,000 are read"),
        ({"raw": "a", "tokens": ["a" * 10_001]}, "10,001 characters, at most 10,000 are read"),
        ({"raw": "\ud800", "tokens": ["a"]}, "not valid Unicode"),
    ],
)
def test_one_bad_caption_is_dropped_and_the_image_kept(tmp_path, bad, reason):
    image = karpathy(sentences=[sentence("A dog"), bad])
    read = read_annotations(written(tmp_path, {"images": [image]}))
    assert read.images[0].captions == (Caption("A dog", ("a", "dog")),)
    assert read.skipped == (SkippedItem("000000000042", f"caption 1: {reason}"),)


def test_an_image_whose_captions_are_all_bad_is_skipped_too(tmp_path):
    assert skips(tmp_path, karpathy(sentences=[sentence("")])) == [
        ("000000000042", "caption 0: empty"),
        ("000000000042", "no caption"),
    ]


def test_a_caption_of_ten_thousand_characters_is_read(tmp_path):
    assert skips(tmp_path, karpathy(sentences=[sentence("a" * 10_000)])) == []


LAYOUTS = "give a Karpathy file (dataset_coco.json), COCO captions, or a captions.jsonl"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no key 'images' in {name}"),
        ([], "no key 'images' in {name}"),
        ({"images": {}}, "'images' in {name} is not a list"),
        ({"images": [], "annotations": 3}, "'annotations' in {name} is not a list"),
        ({"images": [{"id": 1}]}, "no key 'sentences' in the images of {name}"),
        ({"images": []}, "no usable image in {name} (0 skipped)"),
        (
            {"images": [karpathy(split="dev"), karpathy(split="x")]},
            "no usable image in {name} (2 skipped, first '000000000042': unknown split: 'dev')",
        ),
    ],
)
def test_a_file_without_a_known_layout_is_refused(tmp_path, document, message):
    path = written(tmp_path, document)
    assert refusal(path) == f"{message.format(name=repr(str(path)))}; {LAYOUTS}"


def test_coco_instances_are_no_captions(tmp_path):
    path = written(tmp_path, coco(annotations=[{"image_id": 42, "bbox": [0, 0, 1, 1]}]))
    splits = written(tmp_path, {"train": [42]}, "splits.json")
    assert refusal(path, splits) == (
        f"no key 'caption' in the annotations of {str(path)!r}; {LAYOUTS}"
    )


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ("A brown bear's face.", ("a", "brown", "bears", "face")),
        ("a twin-hulled, his/her boat", ("a", "twinhulled", "hisher", "boat")),
        ("  two\n spaces\u3000", ("two", "spaces")),
        ("«Café» naïve", ("«café»", "naïve")),
        ("?!", ()),
    ],
)
def test_raw_captions_become_tokens_by_the_rule_of_karpathys_file(raw, tokens):
    assert tokenize(raw) == tokens


@pytest.mark.parametrize(("total", "limit"), [(100, 10), (10_999, 10), (20_000, 20)])
def test_bad_items_are_borne_up_to_ten_or_a_thousandth(total, limit):
    skipped = [SkippedItem(f"p{number}", "empty") for number in range(limit + 1)]
    check_skip_limit(skipped[:-1], total, "images")
    with pytest.raises(InputError) as caught:
        check_skip_limit(skipped, total, "images")
    assert str(caught.value) == (
        f"{limit + 1} of {total:,} images cannot be used, at most {limit} may be left out: "
        "'p0' (empty), 'p1' (empty), 'p2' (empty), 'p3' (empty), 'p4' (empty), …; "
        "fix or remove them"
    )


def annotated(*files: str) -> Annotations:
    images = [karpathy(filename=file, filepath="") for file in files]
    return Annotations(
        tuple(
            AnnotatedImage(str(number), str(item["filename"]), "train", (Caption("a", ("a",)),))
            for number, item in enumerate(images)
        ),
        (),
    )


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_an_image_is_found_under_its_name_or_its_last_part(tmp_path):
    touch(tmp_path, "val2014/a.jpg", "b.jpg")
    found = resolve_images(annotated("val2014/a.jpg", "val2014/b.jpg", "c.jpg"), tmp_path)
    assert found == {"0": tmp_path / "val2014/a.jpg", "1": tmp_path / "b.jpg"}


def test_a_last_part_that_two_images_share_is_not_enough(tmp_path):
    touch(tmp_path, "a.jpg")
    assert resolve_images(annotated("x/a.jpg", "y/a.jpg"), tmp_path) == {}


def test_a_2014_name_is_found_in_a_folder_of_2017_names(tmp_path):
    touch(tmp_path / "images", "val2017/000000000042.jpg")
    path = written(tmp_path, {"images": [karpathy(), GOOD]})
    found = resolve_images(read_annotations(path), tmp_path / "images")
    assert found == {"000000000042": tmp_path / "images/val2017/000000000042.jpg"}


def test_the_folder_is_not_scanned_while_names_are_found(tmp_path, monkeypatch):
    touch(tmp_path, "a.jpg", "a.png")
    assert resolve_images(annotated("a.jpg"), tmp_path) == {"0": tmp_path / "a.jpg"}
    monkeypatch.setattr(
        "a2cap.data.annotations.read.find_images", lambda folder: {"1": folder / "x.jpg"}
    )
    assert resolve_images(annotated("a.jpg", "b.jpg"), tmp_path) == {
        "0": tmp_path / "a.jpg",
        "1": tmp_path / "x.jpg",
    }


def test_nothing_outside_the_image_folder_is_found(tmp_path):
    folder, outside = tmp_path / "images", tmp_path / "outside"
    touch(folder, "real.jpg")
    touch(outside, "secret.jpg")
    (folder / "out.jpg").symlink_to(outside / "secret.jpg")
    (folder / "inner.jpg").symlink_to(folder / "real.jpg")
    (folder / "linked").symlink_to(outside)
    (folder / "broken.jpg").symlink_to(folder / "nowhere.jpg")
    files = ("out.jpg", "inner.jpg", "linked/secret.jpg", "../outside/secret.jpg", "broken.jpg")
    found = resolve_images(annotated(*files, "a\0b.jpg", "x" * 300 + ".jpg"), folder)
    assert found == {"1": folder / "inner.jpg"}


@pytest.mark.parametrize("part", ["images", "images/val2014"])
def test_folders_are_no_images(tmp_path, part):
    touch(tmp_path, "images/val2014/a.jpg")
    assert resolve_images(annotated(part), tmp_path) == {}


class TestOnSharedCoco:
    pytestmark = needs_shared

    def test_every_image_of_the_karpathy_sample_is_read_and_found(self):
        read = read_annotations(SHARED / "dataset_coco.json")
        assert (len(read.images), read.skipped) == (345, ())
        assert len(resolve_images(read, SHARED / "images")) == 345

    @pytest.mark.slow
    def test_karpathys_tokens_are_ours_in_105759_captions(self):
        read = read_annotations(SHARED / "text/dataset_coco_partial.json.gz")
        captions = [caption for image in read.images for caption in image.captions]
        assert (len(captions), read.skipped) == (105_759, ())
        assert all(tokenize(caption.raw) == caption.tokens for caption in captions)

    def test_coco_captions_of_2017_are_read_with_a_split_list(self, tmp_path):
        path = SHARED / "text/captions_val2017.json.gz"
        document = json.loads(gzip.decompress(path.read_bytes()))
        names = [item["file_name"] for item in document["images"]]
        splits = written(tmp_path, {"train": names[:4000], "val": names[4000:]}, "splits.json")
        read = read_annotations(path, split_list=splits)
        assert (len(read.images), read.skipped) == (5000, ())
        assert sum(len(image.captions) for image in read.images) == 25_014
