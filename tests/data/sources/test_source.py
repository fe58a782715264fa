"""What is wrong with a source is named; its other images are read."""

import sys
from pathlib import Path

import pytest

from a2cap.data.errors import ConfigError, InputError, UnreadableError
from a2cap.data.sources.location import expand
from a2cap.data.sources.opening import open_source, require_image_folder
from a2cap.data.sources.source import SourceItem
from tests.data.messages import message_of
from tests.data.sources.samples import jpeg, tar_bytes, write_parquet

A, B = jpeg(10), jpeg(20)
MEMBERS = {"a.jpg": A, "a.txt": b"a dog\n", "b.jpg": B}


def read(text):
    source = open_source(str(text))
    return {item.image_id: content for item, content in source.read(source.items())}


def error_of(text):
    with pytest.raises(InputError) as caught:
        list(open_source(str(text)).items())
    return str(caught.value)


def test_brace_patterns_are_those_of_shells():
    assert expand("s-{08..10}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar"]
    assert expand("{a,b}/{0..1}") == ["a/0", "a/1", "b/0", "b/1"]
    assert expand("plain{}.tar") == ["plain{}.tar"]


def test_a_truncated_tar_yields_its_whole_members_and_is_named(tmp_path, caplog):
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    content = tar_bytes(MEMBERS)
    whole.write_bytes(tar_bytes({"w.jpg": A}))
    ends = [512 + len(A), 2048 + 6, 3072 + len(B)]  # of the three members; the tar ends at 4096
    cuts = [0, 100, 600, *ends, *(end - 1 for end in ends), 1536, 2300, 2560, 4095, 4096]
    for kept in cuts:
        caplog.clear()
        cut.write_bytes(content[:kept])
        found = read(tmp_path / "{cut,whole}.tar")
        count = sum(end <= kept for end in ends)
        images = {"a": A} if count else {}
        assert found == images | ({"b": B} if count == 3 else {}) | {"w": A}
        message = f"tar {str(cut)!r} ends early: its {count} whole members are used; copy it again"
        assert {record.getMessage() for record in caplog.records} == {message}


def test_a_whole_tar_is_not_named(tmp_path, caplog):
    path = tmp_path / "whole.tar"
    path.write_bytes(tar_bytes({**MEMBERS, "._a.jpg": b"of a Mac", "dir/README": b""}))
    assert read(path) == {"a": A, "b": B}
    assert not caplog.records


def test_a_damaged_header_and_a_name_outside_are_named(tmp_path, caplog):
    path = tmp_path / "bad.tar"
    content = bytearray(tar_bytes({"../x.jpg": A, **MEMBERS}))
    content[512 * 3 + 512 * 3 : 512 * 3 + 512 * 3 + 20] = b"damaged header bytes"  # of a.txt
    path.write_bytes(content)
    assert read(path) == {"a": A}
    assert [record.getMessage() for record in caplog.records] == [
        f"skipped an image of {str(path)!r}: image path leaves the image folder: '../x.jpg'; "
        "give it without '..'",
        f"tar {str(path)!r} ends early: its 2 whole members are used; copy it again",
    ]


def test_two_keys_alike_across_tars_are_named(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(tar_bytes({f"x{number}/7.jpg": A}))
    assert error_of(tmp_path / "{0..1}.tar") == (
        f"two images have the id '000000000007': 'x0/7.jpg' in {str(tmp_path / '0.tar')!r} and "
        f"'x1/7.jpg' in {str(tmp_path / '1.tar')!r}; remove or rename one"
    )


def test_missing_shards_are_named(tmp_path):
    (tmp_path / "s-1.tar").write_bytes(tar_bytes(MEMBERS))
    text = str(tmp_path / "s-{0..2}.tar")
    assert error_of(text) == (
        f"2 of 3 files of {text!r} are missing: {tmp_path / 's-0.tar'}, {tmp_path / 's-2.tar'}; "
        "check the path"
    )


def test_what_changed_since_the_listing_is_an_error_of_each_image(tmp_path, monkeypatch):
    path, gone = tmp_path / "s.tar", tmp_path / "t.tar"
    path.write_bytes(tar_bytes(MEMBERS))
    gone.write_bytes(tar_bytes({"t.jpg": A}))
    (tmp_path / "x.jpg").symlink_to("nowhere")
    source = open_source(str(tmp_path / "{s,t}.tar"))
    items = [*source.items(), SourceItem("c", str(path), "c.jpg")]
    gone.unlink()
    found = {item.image_id: content for item, content in source.read(sorted(items, key=repr))}
    assert found.pop("a") == A and found.pop("b") == B
    assert {name: str(error) for name, error in found.items()} == {
        "c": f"no whole image 'c.jpg' in {str(path)!r}; copy the tar again",
        "t": f"no file {str(gone)!r}; check the path",
    }
    with pytest.raises(InputError, match="is not in"):
        list(source.read([SourceItem("u", "u.tar", "u.jpg")]))
    assert str(read(tmp_path)["x"]) == f"no file {str(tmp_path / 'x.jpg')!r}; check the path"


def test_a_failing_disk_is_not_blamed_on_the_image(memory, monkeypatch):
    memory.pipe("/failing/a.jpg", A)
    source = open_source("memory://failing")
    items = list(source.items())
    assert [(item.image_id, item.member) for item in items] == [("a", "a.jpg")]
    assert list(source.read(items)) == [(items[0], A)]

    def fail(*_arguments, **_options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(memory), "_open", fail)
    ((_, error),) = source.read(items)
    assert isinstance(error, UnreadableError)
    assert str(error) == (
        "cannot read 'memory://failing/a.jpg': Input/output error; check the disk or the network"
    )


def test_what_is_no_source_is_an_error(tmp_path):
    path = tmp_path / "notes.md"
    path.touch()
    assert error_of(path) == (
        f"{str(path)!r} is not a folder, a list (.txt), a tar (.tar) or a Parquet file "
        "(.parquet); name one of these"
    )
    assert error_of("nosuch://a/b.tar") == (
        "cannot open 'nosuch://a/b.tar': its protocol is not one of http, https, s3, gs, hf; "
        "check the address"
    )
    (tmp_path / "no.tar").write_bytes(tar_bytes({"a.txt": b"a dog"}))
    text = str(tmp_path / "no.tar")
    assert error_of(text) == f"no images in {text!r}; check the path"


def test_a_folder_in_place_of_a_source_is_asked_for_with_the_way_to_extract_it(tmp_path):
    message = message_of(require_image_folder, Path("s3://a/{0..1}.tar"), error=ConfigError)
    assert message == (
        "data.images is not a folder: 's3://a/{0..1}.tar'; extract it with "
        '"a2 extract --plan DIR", and name DIR as data.features'
    )
    assert require_image_folder(tmp_path) == tmp_path


def test_a_digest_is_of_names_and_sizes_and_of_no_place(tmp_path):
    digests = []
    for name, members in (("x", {"a.jpg": A}), ("y", {"a.jpg": A}), ("z", {"a.jpg": A + b"."})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.tar").write_bytes(tar_bytes(members))
        digests.append(open_source(str(tmp_path / name / "s.tar")).digest)
    assert digests[0] == digests[1] != digests[2]


def test_rows_of_parquet_without_bytes_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "train.parquet"
    write_parquet(path, image=[{"bytes": A, "path": None}, {"bytes": None, "path": "cats/1.jpg"}])
    found = read(path)
    assert list(found) == ["train/row-0", "000000000001"]
    assert found["train/row-0"] == A
    assert str(found["000000000001"]) == f"row 1 of {str(path)!r} has no image bytes; add them"


def test_unusable_parquet_files_are_named(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    write_parquet(path, picture=[A], caption=["a dog"])
    assert error_of(path) == (
        f"no column image or jpg in {str(path)!r}, it has picture, caption; rename the column of "
        "the images"
    )
    write_parquet(path, image=[A, B], id=["1", "2"], row_group_size=1)
    source = open_source(str(path))
    items = list(source.items())
    content = bytearray(path.read_bytes())
    content[4 : 4 + 300] = bytes(300)
    path.write_bytes(content)
    (_, error), (_, second), (_, third) = source.read([*items, SourceItem("3", str(path), "3")])
    assert str(error).startswith(f"cannot read {str(path)!r}: ") and second == B
    assert str(third) == f"{str(path)!r} has too few rows; restore what was listed"
    path.write_bytes(content[:-50])
    assert error_of(path).startswith(f"cannot read {str(path)!r}: ")
    assert error_of(path).endswith("; copy the file again")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert error_of(path) == (
        f'{str(path)!r} needs pyarrow; install it with pip install "a2cap[parquet]"'
    )
