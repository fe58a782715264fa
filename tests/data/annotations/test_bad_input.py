"""Annotations that are damaged, hostile or of another kind: skipped by name, or one clear error."""

import json
import subprocess
import sys

import pytest

from a2cap.data.annotations import read
from a2cap.data.annotations.read import read_annotations
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
            '[{"image": "a.jpg", "caption": "x", "caption": "y"}]',
            "{path} has the key 'caption' twice",
        ),
        ('{"a.jpg": "x", "a.jpg": "y"}', "{path} has the key 'a.jpg' twice; keep one"),
    ],
)
def test_damaged_json_is_one_clear_error(tmp_path, text, message):
    path = written(tmp_path, text)
    assert message_of(read_annotations, path).startswith(message.format(path=repr(str(path))))


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


_MEASURE = """
import resource, sys
from pathlib import Path
from a2cap.data.annotations.read import (read_annotations)
from a2cap.data.errors import InputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_annotations(Path(sys.argv[1]))
except InputError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        {"image": "data:image/jpeg;base64," + "A" * 100_000, "caption": "a dog"},
        {"image_id": 42, "category_id": 3, "bbox": [1.5, 2.5, 3.5, 4.5], "score": 0.5},
        {
            "image": "d/%09d.jpg",
            "caption": "A man in a red coat and two dogs sit on the green grass beside a road. 🐶",
        },
    ],
)
def test_a_list_takes_at_most_twice_the_file_in_memory(tmp_path, row):
    text = json.dumps(row, ensure_ascii=False)
    size = 60_000_000 if "%" not in text else 16_000_000
    path = tmp_path / "x.json"
    rows = (text.replace("%09d", f"{n:09d}") for n in range(size // len(text)))
    path.write_text(f"[{', '.join(rows)}]")
    made = subprocess.run(
        [sys.executable, "-c", _MEASURE, path], capture_output=True, text=True, check=True
    )
    assert int(made.stdout) * 1024 < 2 * path.stat().st_size
