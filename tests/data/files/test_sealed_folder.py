"""Sealed folders: they read back as sealed, every damage is found, and the first publisher wins."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2cap.data.errors import A2Error
from a2cap.data.files import sealed_folder as module
from a2cap.data.files.sealed_folder import (
    KEY_LENGTH,
    MANIFEST,
    MadeFrom,
    Manifest,
    Output,
    SkippedItem,
    check_skip_limit,
    digest_of,
    installed_versions,
    problems,
    publish,
    read_manifest,
    require_intact,
    seal,
    write_manifest,
)
from tests.data.messages import message_of

MADE = MadeFrom(stage="count", version=1, fields={"count": {"to": 9}}, inputs={"start": "ab"})
SKIPPED = (SkippedItem("7", "unreadable"),)


@pytest.fixture
def folder(tmp_path):
    """A result with one file and an inner sealed folder of two."""
    folder = tmp_path / "result"
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / "inner" / name).write_text(name)
    (folder / "total.txt").write_text("9")
    seal(folder / "inner", ["a", "b"], facts={"digest": "that of the records", "count": 2})
    seal(folder, ["total.txt", "inner"], made_from=MADE, skipped=SKIPPED, seconds=1.5)
    return folder


def test_a_sealed_folder_reads_back(folder):
    manifest = read_manifest(folder)
    assert manifest.made_from == MADE
    assert manifest.reasons == {"7": "unreadable"}
    assert manifest.outputs["inner"] == Output(sha256="that of the records", size=2)
    assert (manifest.outputs["total.txt"].size, manifest.size, manifest.seconds) == (1, 3, 1.5)
    assert problems(folder) == []
    require_intact(folder, "total.txt", "inner")


def test_the_digest_is_that_of_the_outputs_unless_it_is_stated(folder):
    again = seal(folder, ["inner", "total.txt"], skipped=(), seconds=9.0)
    assert again.digest == digest_of({n: o.sha256 for n, o in again.outputs.items()})
    assert again.digest == seal(folder, ["total.txt", "inner"], made_from=MADE).digest
    assert again.digest != seal(folder, ["total.txt"]).digest
    assert read_manifest(folder / "inner").digest == "that of the records"


@pytest.mark.parametrize("name", ["total.txt", "inner/a", "inner/manifest.json", "manifest.json"])
def test_every_flipped_bit_is_found(folder, name):
    content = (folder / name).read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 4
        (folder / name).write_bytes(flipped)
        try:
            is_equal = name.endswith(MANIFEST) and json.loads(flipped) == json.loads(content)
        except ValueError:
            is_equal = False
        try:
            lines = problems(folder)
        except A2Error as error:
            lines = [str(error)]
        assert bool(lines) != is_equal, position
    (folder / name).write_bytes(content)
    assert problems(folder) == []


@pytest.mark.parametrize("name", ["total.txt", "inner/b"])
def test_a_truncated_or_missing_output_is_found_by_its_size(folder, name):
    path = folder / name
    path.write_text("long")
    assert problems(folder, digests=False) == [f"{str(path)!r} has 4 bytes, 1 in the manifest"]
    path.unlink()
    assert problems(folder, digests=False) == [f"{str(path)!r} is missing"]


def test_an_output_that_was_changed_is_not_intact(folder):
    (folder / "total.txt").write_text("8")
    require_intact(folder, "inner")
    assert message_of(require_intact, folder, "total.txt") == (
        f"{str(folder / 'total.txt')!r} differs from its sha256 in the manifest; "
        f'run "a2 verify --data {folder}", which names the command that restores it'
    )
    (folder / MANIFEST).unlink()  # as in a copy of some files
    require_intact(folder, "total.txt")


def test_an_inner_folder_of_another_result_is_found(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    seal(tmp_path / "other" / "inner", ["a", "b"], facts={"digest": "another", "count": 2})
    assert problems(tmp_path / "other") == [
        f"{str(tmp_path / 'other' / 'inner')!r} differs from its digest in the manifest"
    ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is not an object"),
        ("{}", "no 'manifest_sha256'"),
        ('{"manifest_sha256": ""}', "outputs: field required"),
        ('{"format": 2, "outputs": {}, "finished": 1, "manifest_sha256": ""}', "format: input sh"),
        ('{"outputs": {}, "finished": 1, "manifest_sha256": ""}', "it differs from its checksum"),
    ],
)
def test_an_unreadable_manifest_is_an_error_with_a_remedy(tmp_path, content, what):
    (tmp_path / MANIFEST).write_text(content)
    text = message_of(read_manifest, tmp_path, error=A2Error)
    assert text.startswith(f"manifest is unreadable: {str(tmp_path / MANIFEST)!r} (")
    assert what in text
    assert text.endswith("; delete that folder, then run the command that made it again")


def test_the_first_to_publish_wins_and_the_other_is_discarded(folder, tmp_path):
    second = shutil.copytree(folder, tmp_path / "second.partial")
    assert publish(folder, tmp_path / "final")
    assert not publish(second, tmp_path / "final")
    assert problems(tmp_path / "final") == []
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.dictionaries(st.text(), values, max_size=3))
def test_a_written_manifest_reads_back_and_digests_ignore_order(tmp_path_factory, fields):
    folder = tmp_path_factory.getbasetemp()
    made = MadeFrom(stage="s", version=1, fields=fields)
    manifest = Manifest(made_from=made, outputs={}, facts=fields, finished=1.0)
    write_manifest(folder, manifest)
    assert read_manifest(folder) == manifest
    assert read_manifest(folder).made_from.key == made.key
    assert digest_of(fields) == digest_of(dict(reversed(fields.items())))


def test_a_key_covers_every_part_of_what_a_result_is_made_from():
    others = [
        {"stage": "sum"},
        {"version": 2},
        {"fields": {"count": {"to": 9.0}}},
        {"inputs": {"start": "ac"}},
    ]
    keys = {MADE.key, *(MADE.model_copy(update=other).key for other in others)}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {KEY_LENGTH}


def test_a_digest_is_that_of_ascii_without_spaces_and_rejects_what_json_lacks():
    text = '{"a":null,"b":["\\u00e9",1]}'
    assert digest_of({"b": ["é", 1], "a": None}) == hashlib.sha256(text.encode()).hexdigest()
    for constant in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range float values"):
            digest_of({"lr": constant})


def test_versions_are_those_of_installed_packages(monkeypatch):
    assert {"torch", "numpy", "a2cap", "python"} <= installed_versions().keys()
    monkeypatch.setattr(module, "_RECORDED_PACKAGES", ("numpy", "no such package"))
    assert sorted(installed_versions.__wrapped__()) == ["numpy", "python"]


def test_too_many_open_files_are_not_damage(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="Too many open files"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("total", "limit"), [(3, 1), (20, 1), (100, 5), (200, 10), (10_999, 10), (20_000, 20)]
)
def test_up_to_ten_or_a_thousandth_of_the_items_may_be_skipped(total, limit):
    skipped = [SkippedItem(f"p{number}", "empty") for number in range(limit + 1)]
    check_skip_limit(skipped[:-1], total, "images")
    assert message_of(check_skip_limit, skipped, total, "images") == (
        f"{limit + 1} of {total:,} images cannot be used, at most {limit} may be left out: "
        + ", ".join(f"'p{number}' (empty)" for number in range(min(limit + 1, 5)))
        + ", …" * (limit > 4)
        + "; fix or remove them"
    )
