"""Captions inside tars and Parquet files."""

import json
from pathlib import Path

import pytest

from a2cap.data.annotations.layouts import require_annotations
from a2cap.data.annotations.read import read_annotations
from a2cap.data.annotations.record import NAME_CAPTION
from a2cap.data.sources.open_source import open_source
from tests.data.annotations.documents import reasons
from tests.data.messages import message_of
from tests.data.sources.samples import tar_bytes, write_parquet

ALL = "random(1/0/0, 1)"
JSON = json.dumps({"caption": "a red fish", "url": "…"}).encode()


def captions(annotations):
    return {image.image_id: [c.raw for c in image.captions] for image in annotations.images}


def test_texts_and_json_of_a_tar_are_the_captions_of_its_images(tmp_path):
    members = {
        "x/1.jpg": b"",
        "x/1.txt": "A dog.\n\nZwei Hünde\n".encode(),
        "b.json": json.dumps({"captions": ["a cat", "cats"]}).encode(),
        "b.txt": b"not this",  # img2dataset writes the caption of the JSON here
        "b.png": b"",
        "c.txt": b"",
        "c.jpg": b"",
        "d.json": b"{",
        "d.jpg": b"",
        "e.json": b"[]",
        "e.jpg": b"",
        "g.json": b'{"title": "a dog"}',  # and no text
        "g.jpg": b"",
        "f.txt": b"\xff",
        "f.jpg": b"",
        "no image.txt": b"a text",
    }
    path = tmp_path / "s-0.tar"
    path.write_bytes(tar_bytes(members))
    (tmp_path / "s-1.tar").write_bytes(tar_bytes({"y.jpg": b"", "y.json": JSON}))
    annotations = read_annotations(tmp_path / "s-{0..1}.tar", split=ALL)
    assert captions(annotations) == {
        "000000000001": ["A dog.", "Zwei Hünde"],
        "b": ["a cat", "cats"],
        "y": ["a red fish"],
    }
    assert reasons(annotations) == [
        (
            f"d.jpg in {path}",
            "not JSON: d.json (line 1, column 2: Expecting property name enclosed "
            "in double quotes); fix the file or copy it again",
        ),
        (f"e.jpg in {path}", "'e.json' is not a JSON object"),
        (f"g.jpg in {path}", f"no field of the caption among 'title'; {NAME_CAPTION}"),
        (f"f.jpg in {path}", "not UTF-8 text: f.txt (byte 0); save it as UTF-8"),
        ("c", "no caption"),
    ]
    ids = {item.image_id for item in open_source(str(tmp_path / "s-*.tar")).items()}
    assert ids >= captions(annotations).keys()


def test_splits_in_a_tar_behind_a_url_are_used(memory):
    members = {
        f"{split}{end}": json.dumps({"caption": "a dog", "split": split}).encode()
        for split in ("train", "val")
        for end in (".jpg", ".json")
    }
    memory.pipe("/captions/s.tar", tar_bytes(members))
    annotations = read_annotations(Path("memory://captions/s.tar"))
    assert [(image.image_id, image.split) for image in annotations.images] == [
        ("train", "train"),
        ("val", "val"),
    ]


def test_columns_of_parquet_are_captions_and_splits(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "train.parquet"
    image = [{"bytes": b"", "path": name} for name in ("a.b.jpg", "7.jpg", None)]
    write_parquet(path, image=image, sentences=[["a dog", "dogs"], ["a cat"], []])
    annotations = read_annotations(path, split=ALL)
    assert captions(annotations) == {"a.b": ["a dog", "dogs"], "000000000007": ["a cat"]}
    assert reasons(annotations) == [("train/row-2", "no caption")]
    assert {item.image_id for item in open_source(str(path)).items()} > captions(annotations).keys()
    write_parquet(path, jpg=[b""], key=["x"], caption=["a dog"], split=["test"])
    (image,) = read_annotations(path).images
    assert (image.image_id, image.split, image.captions[0].raw) == ("x", "test", "a dog")


def test_sources_without_captions_are_errors(memory, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    write_parquet(path, image=[b""])
    assert message_of(lambda: read_annotations(path)) == (
        f"no column of captions in {str(path)!r}, it has image; {NAME_CAPTION}"
    )
    memory.pipe("/lists/images.txt", b"a.jpg\n")
    assert message_of(lambda: read_annotations(Path("memory://lists/images.txt"))) == (
        "'memory://lists/images.txt' contains no captions; name tars, Parquet files, or a file "
        "of captions on this machine"
    )


def test_captions_are_a_file_a_folder_or_a_source_whose_files_are_not_checked_yet(tmp_path):
    assert require_annotations(tmp_path) == tmp_path
    source = tmp_path / "s-{0..9}.tar"
    assert require_annotations(source) == source
    message = "file of data.annotations not found"
    assert message_of(require_annotations, tmp_path / "x.json").startswith(message)
