import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.files import json_file
from a2cap.data.files.expansion import expansion_limit
from a2cap.data.files.json_file import (
    JsonObject,
    list_items,
    parse_json,
    read_json,
    read_json_list,
    read_text,
    write_json,
)
from tests.data.messages import message_of, written

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(JSON_VALUES))
def test_written_values_are_read_back_whole_or_item_by_item(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("json") / "x.json"
    write_json(path, values)
    assert read_json(path) == list(read_json_list(path)) == values


def test_equal_values_give_equal_bytes_in_any_order_of_keys(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": ["é"]})
    write_json(tmp_path / "b.json", {"a": ["é"], "b": 1})
    expected = '{\n  "a": [\n    "é"\n  ],\n  "b": 1\n}\n'.encode()
    assert (tmp_path / "a.json").read_bytes() == expected
    assert (tmp_path / "b.json").read_bytes() == expected


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", float("nan"))


@pytest.mark.parametrize("name", ["x.json.gz", "x.json"])
@pytest.mark.parametrize("content", [b"[1]", gzip.compress(b"[1]", mtime=0), b"\xef\xbb\xbf[1]"])
def test_gzip_is_recognised_by_its_first_bytes_and_a_byte_order_mark_ignored(
    tmp_path, name, content
):
    path = tmp_path / name
    path.write_bytes(content)
    assert read_json(path) == [1]
    assert read_text(path) == "[1]"


NUMBERS = json.dumps(list(range(1000))).encode()
FLIPPED = bytearray(gzip.compress(NUMBERS, mtime=0))
FLIPPED[50] ^= 0xFF
FIX = "; fix the file or copy it again"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"a": 1,\n"b"}', f"not JSON: {{}} (line 3, column 4: Expecting ':' delimiter){FIX}"),
        (b"[NaN]", f"not JSON: {{}} (NaN is not a JSON number){FIX}"),
        (b"[Infinity]", f"not JSON: {{}} (Infinity is not a JSON number){FIX}"),
        (b"[-Infinity]", f"not JSON: {{}} (-Infinity is not a JSON number){FIX}"),
        (b'["caf\xe9"]', "not UTF-8 text: {} (byte 5); save it as UTF-8"),
        (
            gzip.compress(NUMBERS, mtime=0)[:-20],
            "damaged gzip file: {} (Compressed file ended before the end-of-stream marker "
            "was reached); copy it again",
        ),
    ],
)
def test_a_damaged_file_is_rejected_with_the_position_of_the_fault(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert message_of(read_json, path) == message.format(repr(str(path)))


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"[" * 200_000, "not JSON"), (b"9" * 5000, "not JSON"), (FLIPPED, "damaged gzip file")],
)
def test_a_file_beyond_pythons_limits_or_with_flipped_bits_is_rejected(tmp_path, content, fault):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert message_of(read_json, path).startswith(f"{fault}: {str(path)!r} (")


def test_gzip_that_expands_too_much_is_rejected(tmp_path, monkeypatch):
    assert (expansion_limit(1), expansion_limit(10**7)) == (256 << 20, 10**9)
    monkeypatch.setattr(json_file, "expansion_limit", lambda stored: 1 << 20)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b"1" * (1 << 20) + b" "))
    assert message_of(read_json, path) == (
        f"{str(path)!r} expands to more than 1 MiB; unpack it yourself with gunzip if it is what "
        "you expect, and name the result"
    )


def test_a_text_a_missing_file_and_a_folder_are_reported_by_name(tmp_path):
    message = message_of(parse_json, "{", where="line 7")
    assert message.startswith("not JSON: line 7 (line 1, column 2: Expecting property name ")
    path = tmp_path / "x.json"
    assert message_of(read_json, path) == f"no file {str(path)!r}; check the path"
    assert message_of(read_json, tmp_path) == (
        f"cannot read {str(tmp_path)!r} (Is a directory); check the path"
    )


def test_white_space_between_the_values_of_a_list_is_ignored(tmp_path):
    path = written(tmp_path, ' \n[ 1\t,{"a" : [ ]}\r\n, "]" ]\n')
    assert list(read_json_list(path)) == [1, {"a": []}, "]"]
    assert list(read_json_list(written(tmp_path, "[]\n"))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1 2]", f"not JSON: {{}} (line 1, column 4: Expecting ',' delimiter){FIX}"),
        ("[1,\n]", f"not JSON: {{}} (line 2, column 1: Expecting value){FIX}"),
        ("[1, 2", f"not JSON: {{}} (line 1, column 6: Expecting ',' delimiter){FIX}"),
        ("[", f"not JSON: {{}} (line 1, column 2: Expecting value){FIX}"),
        ("[NaN]", f"not JSON: {{}} (NaN is not a JSON number){FIX}"),
        ("[1] 2", f"not JSON: {{}} (text after the list){FIX}"),
        *[(text, "not a JSON list: {}; name a file that contains one") for text in ("", "{}", "3")],
    ],
)
def test_an_invalid_list_is_rejected_with_its_position(tmp_path, text, message):
    path = written(tmp_path, text)
    assert message_of(list, read_json_list(path)) == message.format(repr(str(path)))


def test_a_large_value_has_its_first_members_and_says_so(monkeypatch):
    monkeypatch.setattr(json_file, "_LARGEST", 60)
    log = [{"step": n, "text": "é" * n} for n in range(30)]
    document: dict[str, Any] = {
        "info": {"description": "COCO", "log": log, "n": 1.5},
        "images": [{"id": 1}],
    }
    text = json.dumps(document)
    blocks = [text[n : n + 7] for n in range(0, len(text), 7)]
    read = {key: value for key, _, value in JsonObject(blocks, where="'x'").members()}
    assert read["images"] == {"id": 1}
    assert read["info"] == {
        "description": "COCO",
        "log": [*log[:20], {"more than are read": None}],
        "n": 1.5,
    }
    [record] = list_items(
        iter([json.dumps([{"captions": ["a dog"] * 30, "image": "x" * 200}])]), where=""
    )
    assert record == {"captions": ["a dog"] * 30, "image": "x" * 200}
    for damaged in (text.replace('"n"', '"log"'), text.replace("29,", "29 "), text[:300]):
        members = JsonObject(iter([damaged]), where="'x'").members()
        assert message_of(list, members) == message_of(parse_json, damaged, where="'x'")
