"""Annotations that are damaged, hostile or of another kind: skipped by name, or one clear error."""

import json
import os
import tracemalloc
from contextlib import suppress

import pytest

from a2cap.data.annotations import read
from a2cap.data.annotations.read import read_annotations
from a2cap.data.errors import InputError
from a2cap.data.files import json_file
from a2cap.pipeline.evaluation.references import read_references
from a2cap.pipeline.evaluation.results import read_captions
from tests.data.annotations.documents import reasons
from tests.data.messages import message_of, written

ROWS = [{"image": f"d/x{n}.jpg", "caption": f"a dog {n}", "split": "train"} for n in range(20)]
LIST = json.dumps(ROWS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LIST[: len(LIST) // 2], "not JSON: {path} (line 1, column "),
        ("[" * 100_000, "not JSON: {path} (maximum recursion depth exceeded"),
        ('{"a":' * 100_000, "not JSON: {path} (maximum recursion depth exceeded"),
        ('[{"image": "a.jpg", "caption": NaN}]', "not JSON: {path} (NaN is not a JSON number)"),
        ("", "not JSON: {path} (line 1, column 1: Expecting value)"),
        ("\0" * 50, "not JSON: {path} (line 1, column 1: Expecting value)"),
        ("3", "unknown layout: {path} has the first line '3'"),
        (
            '{"images": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": [1, 2, 3, 4]}]}',
            "unknown layout: {path} is a JSON object of 'images', 'annotations'; the first of "
            "'images' has 'id'; the first of 'annotations' has 'image_id', 'bbox'; give one of: ",
        ),
        (
            '{"train": ["a.jpg"], "test": ["b.jpg", "c.jpg"]}',  # a list of splits
            "no usable image in {path}, read as a JSON object of lists of records: 3 of 3 items "
            "skipped for one reason, first 'train[0]': not a JSON object; fix them",
        ),
        (
            '{"train": [{"photo": "a.jpg", "title": "a dog"}]}',
            "no usable image in {path}, read as a JSON object of lists of records: 1 of 1 items "
            "skipped for one reason, first 'train[0]': no field of the image among 'split', "
            "'photo', 'title'; name it as data.fields.image; fix them",
        ),
        (
            '[{"image": "a.jpg", "caption": "x", "caption": "y"}]',
            "{path} has the key 'caption' twice",
        ),
        ('{"a.jpg": "x", "a.jpg": "y"}', "{path} has the key 'a.jpg' twice; keep one"),
    ],
)
def test_damaged_json_is_one_clear_error(tmp_path, text, message):
    path = written(tmp_path, text)
    assert message_of(read_annotations, path).startswith(message.format(path=repr(str(path))))


@pytest.mark.parametrize("read", [read_references, read_captions])
def test_a_pipe_is_rejected_before_it_is_opened(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    assert message_of(read, tmp_path / "pipe") == (
        f"not a regular file: {str(tmp_path / 'pipe')!r}, which is read twice; write it to a file"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"image": "a.jpg", "caption": 3}, "'caption' is neither a text nor a list of texts: 3"),
        (
            {"image": "data:image/jpeg;base64," + "A" * 5000, "caption": "a dog"},
            "'image' is an image as text: 'data:image/jpeg;base64,AAAAAAA'…; write the image as a "
            "file",
        ),
        (
            {"image": "/9j/4AAQ" + "A" * 5000, "caption": "a dog"},
            "'image' is an image as text: '/9j/4AAQAAAAAAAAAAAAAAAAAAAAAA'…; write the image as a "
            "file",
        ),
        (
            {"image": "../../etc/x.jpg", "caption": "a dog"},
            "image path leaves the image folder: '../../etc/x.jpg'; give it without '..'",
        ),
        (
            {"image": "C:\\me\\x.jpg", "caption": "a dog"},
            "image path is absolute: 'C:/me/x.jpg'; give it relative to the image folder",
        ),
        ({"image": True, "caption": "a dog"}, "'image' is not the name of an image: True"),
        (
            {"image": ["a.jpg", "b.jpg"], "caption": "a dog"},
            "'image' is not the name of an image: ['a.jpg', 'b.jpg']",
        ),
        (
            {"image": "a.jpg", "captions": ["a", "dog", "runs"]},
            "'captions' is a list of single words: ['a', 'dog', 'runs']; name it 'tokens' if it is "
            "a caption in tokens",
        ),
        ({"image": "a.jpg", "conversations": 3}, "'conversations' is not a list of messages"),
        (
            {"image": "a.jpg", "messages": [{"role": "user", "content": "hi"}]},
            "'messages' has 0 answers of the assistant, not 1",
        ),
        (
            {"image": "a.jpg", "messages": [{"role": "assistant"}]},
            "the answer in 'messages' is NoneType, not a string",
        ),
        (
            {"image": "a.jpg", "caption": "['a dog', 'dogs']"},
            "caption 0: a list that was written as text: \"['a dog', 'dogs']\"",
        ),
        (
            {"photo": "a.jpg", "caption": "a dog"},
            "no field of the image among 'split', 'photo', 'caption'; name it as data.fields.image",
        ),
        (
            {"image": "a.jpg", "sentences": [{"rawtext": "a dog"}]},
            "caption 0: an object of 'rawtext', not a text",
        ),
        (3, "not a JSON object"),
    ],
)
def test_a_bad_record_among_good_ones_is_skipped_with_its_reason(tmp_path, row, reason):
    path = written(tmp_path, [*ROWS, {"split": "train"} | row if isinstance(row, dict) else row])
    annotations = read_annotations(path)
    assert len(annotations.images) == 20
    position, first = reasons(annotations)[0]
    assert (position in ("entry 21", "a"), first) == (True, reason)


def test_a_field_of_another_type_in_every_tenth_record_is_named(tmp_path):
    rows = [row | {"caption": 5} if n % 10 == 0 else row for n, row in enumerate(ROWS)]
    assert reasons(read_annotations(written(tmp_path, rows))) == [
        (f"entry {n}", "'caption' is neither a text nor a list of texts: 5") for n in (1, 11)
    ]


def test_reading_ends_early_where_nothing_is_usable(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_MOST_SKIPPED", 5)
    bad = [row | {"caption": 5} for row in ROWS]
    path = written(tmp_path, bad)
    assert "5 of 5 items skipped for one reason, first 'entry 1'" in message_of(
        read_annotations, path
    )
    assert len(read_annotations(written(tmp_path, [*ROWS, *bad])).skipped) == 20


def test_lists_as_text_are_named_as_the_cause(tmp_path):
    path = written(tmp_path, {f"{n}.jpg": f"['a dog {n}', 'it runs']" for n in range(3)})
    assert message_of(read_annotations, path).endswith(
        "3 of 3 items skipped for one reason, first '000000000000': caption 0: a list that was "
        "written as text: \"['a dog 0', 'it runs']\"; fix them"
    )


def test_lines_that_are_cut_cost_the_last_one(tmp_path):
    path = written(tmp_path, "\n".join(map(json.dumps, ROWS))[:-9], "x.jsonl")
    annotations = read_annotations(path)
    assert len(annotations.images) == 19
    assert reasons(annotations)[0][0] == "line 20"


@pytest.mark.parametrize(
    "captions",
    [
        pytest.param({"captions": ["a dog runs"] * 30}, id="list"),
        pytest.param({"captions": [{"raw": "a dog"}] * 30}, id="objects"),
        pytest.param({"tokens": [["a", "dog"]] * 30}, id="tokens"),
        pytest.param({f"caption_{n}": "a dog runs" for n in range(30)}, id="numbered"),
        pytest.param(
            {"caption": "a dog", **{f"f{n}": "a dog runs" for n in range(30)}}, id="other"
        ),
    ],
)
def test_a_record_that_is_not_read_whole_is_skipped(tmp_path, monkeypatch, captions):
    monkeypatch.setattr(json_file, "_LARGEST", 300)
    monkeypatch.setattr(json_file, "_BLOCK", 16)
    rows = [*ROWS, {"image": "a.jpg", "split": "train", **captions}]
    assert reasons(read_annotations(written(tmp_path, rows))) == [
        (
            "entry 21",
            "more than 300 characters, of which only the first 20 captions or fields are read; "
            "shorten it",
        )
    ]


@pytest.mark.parametrize("key", ["images", "annotations"])
def test_an_item_of_coco_that_is_not_read_whole_is_skipped(tmp_path, monkeypatch, key):
    monkeypatch.setattr(json_file, "_LARGEST", 300)
    monkeypatch.setattr(json_file, "_BLOCK", 16)
    long = {"id": 2, "image_id": 1, "caption": "x", **{f"f{n}": LIST[:20] for n in range(30)}}
    document: dict[str, list[object]] = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}],
    }
    document[key].append(long)
    [(position, reason)] = reasons(read_annotations(written(tmp_path, document)))
    assert position == f"{key}[1]"
    assert reason.startswith("more than 300 characters, of which only the first 20 captions or ")


LINE = "a man in a {} coat and {} dogs sit on the {} grass beside a road"
WORDS = ["red", "green", "two", "old", "wet", "small"]


def peak_of_reading(path, read=read_annotations):
    """The most bytes that reading holds at a time, without the megabytes that SQLite keeps."""
    tracemalloc.start()
    with suppress(InputError):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


KARPATHY_ROW = (
    '{{"filename": "{0:09d}.jpg", "split": "train", '
    '"sentences": [{{"raw": "{1}.", "tokens": {3}}}, {{"raw": "{1}", "tokens": {3}}}]}}'
)

COCO_ROW = '{{"id": {0}, "image_id": {4}, "caption": "{1}"}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row", "count"),
    [
        ("x.csv", "d/{0:09d}.jpg,{1}", 3000),
        ("x.json", '{{"image": "d/{0:09d}.jpg", "caption": "{1}"}}', 3000),
        ("x.json", '{{"image": "{0:07d}.jpg", "caption": "a {2} dog"}}', 5000),
        ("karpathy.json", KARPATHY_ROW, 1000),
        ("coco.json", COCO_ROW, 3000),
        ("object.json", '"d/{0:09d}.jpg": ["{1}", "\U0001f415"]', 3000),
        ("x.json", '{{"image": "data:image/jpeg;base64,{0:09000d}", "caption": "a dog"}}', 60),
    ],
)
def test_annotations_take_at_most_twice_their_file_in_memory(
    tmp_path, monkeypatch, name, row, count
):
    monkeypatch.setattr(json_file, "_BLOCK", 4096)
    words = [WORDS[n * n % 7 % 6] for n in range(count + 3)]
    lines = [LINE.format(*words[n : n + 3]) for n in range(count)]
    rows = [
        row.format(n, t, words[n], json.dumps(t.split()), 7 * n % 600) for n, t in enumerate(lines)
    ]
    images = json.dumps([{"id": n, "file_name": f"{n:012d}.jpg"} for n in range(600)])
    text = {
        "x.csv": "\n".join(["image,caption", *rows]),
        "x.json": f"[{','.join(rows)}]",
        "karpathy.json": f'{{"images": [{",".join(rows)}]}}',
        "coco.json": f'{{"annotations": [{",".join(rows)}], "images": {images}}}',
        "object.json": f"{{{','.join(rows)}}}",
    }[name]
    path = written(tmp_path, text, name)
    # of two readings, as the interpreter's table of strings may grow during one of them
    assert any(peak_of_reading(path) < 2 * path.stat().st_size for _ in range(2))


INFO = {"log": [{"step": n, "text": LINE} for n in range(6000)]}
ROW = {"image_id": 7, "caption": LINE}


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_annotations, read_references, read_captions])
@pytest.mark.parametrize(
    "document",
    [
        pytest.param([ROW | {"image_id": n} for n in range(3000)], id="list"),
        pytest.param({f"{n}.jpg": LINE for n in range(3000)}, id="dictionary"),
        pytest.param([ROW, *({"image": n, "caption": n} for n in range(5000))], id="bad"),
        pytest.param({"info": INFO, "images": [{"id": 7}], "annotations": [ROW]}, id="info"),
    ],
)
def test_no_reader_takes_more_than_twice_its_file_in_memory(tmp_path, monkeypatch, read, document):
    monkeypatch.setattr(json_file, "_BLOCK", 4096)
    monkeypatch.setattr(json_file, "_LARGEST", 40_000)
    path = written(tmp_path, document)
    assert any(peak_of_reading(path, read) < 2 * path.stat().st_size for _ in range(2))
