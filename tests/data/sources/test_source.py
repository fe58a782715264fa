"""What is wrong with a source is named; its other images are read."""

import sys
import tarfile
from pathlib import Path

import pytest

from a2cap.data.errors import InputError, TruncatedError, UnreadableError
from a2cap.data.sources import tar
from a2cap.data.sources.location import expand
from a2cap.data.sources.open_source import image_source, open_source
from a2cap.data.sources.source import SourceItem
from tests.data.messages import message_of
from tests.data.sources.samples import jpeg, tar_bytes, write_parquet

A, B = jpeg(10), jpeg(20)
MEMBERS = {"a.jpg": A, "a.txt": b"a dog\n", "b.jpg": B}


def read(text):
    source = open_source(str(text))
    return {item.image_id: content for item, content in source.read(source.items())}


def error_of(text):
    return message_of(lambda: list(open_source(str(text)).items()))


def test_brace_patterns_are_those_of_shells():
    assert expand("s-{08..10}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar"]
    assert expand("{a,b}/{0..1}") == ["a/0", "a/1", "b/0", "b/1"]
    assert expand("plain{}.tar") == ["plain{}.tar"]


def test_a_tar_cut_anywhere_ends_the_listing_after_its_whole_members(tmp_path):
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    content = tar_bytes(MEMBERS)
    whole.write_bytes(tar_bytes({"w.jpg": A}))
    ends = [512 + len(A), 2048 + 6, 3072 + len(B)]  # of the three members; the tar ends at 4096
    cuts = [0, 100, 600, *ends, *(end - 1 for end in ends), 1536, 2300, 2560, 4095, 4096]
    for kept in cuts:
        cut.write_bytes(content[:kept])
        count = sum(end <= kept for end in ends)
        items = open_source(str(tmp_path / "{cut,whole}.tar")).items()
        assert next(items).image_id == ("a" if count else "w")
        assert message_of(list, items, error=TruncatedError) == (
            f"tar {str(cut)!r} ends early or is damaged, after {count} whole members; "
            "copy it again, or leave it out"
        )
    whole.write_bytes(b"")
    with pytest.raises(TruncatedError, match=r"\(1 more tars do too\)"):
        list(open_source(str(tmp_path / "{cut,whole}.tar")).items())


def test_a_whole_tar_is_listed_to_its_end(tmp_path):
    path = tmp_path / "whole.tar"
    path.write_bytes(tar_bytes({**MEMBERS, "._a.jpg": b"of a Mac", "dir/README": b""}))
    assert read(path) == {"a": A, "b": B}


def test_one_flipped_bit_of_a_header_never_loses_an_image_silently(tmp_path):
    path = tmp_path / "s.tar"
    content = tar_bytes(MEMBERS)
    path.write_bytes(content)
    names = [item.member for item in open_source(str(path)).items()]
    for header in (0, 1536, 2560):
        for position in range(header, header + 512, 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            try:
                assert [item.member for item in open_source(str(path)).items()] == names
            except TruncatedError:
                continue


def erased(content):
    return content[:1536] + bytes(1024) + content[2560:]


def resized(content, number):
    """Return a tar whose first member states another size, with the right checksum."""
    header = bytearray(content[:512])
    header[124:136] = number
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content[512:]


@pytest.mark.parametrize(
    "damage",
    [
        erased,
        lambda content: content + content,
        lambda content: resized(content, b"\xff" * 11 + b"\0"),  # -256
        lambda content: resized(content, b"\xff" * 8 + b"\xf0\0\0\0"),
        lambda content: resized(content, b"\x80" + b"\0" * 3 + b"\x05" + b"k" * 7),  # 10^20
        lambda content: resized(content, b"-0000000777\0"),
        lambda content: b"\x1f\x8b" + content,
        lambda content: tarfile.TarInfo.create_pax_global_header({"comment": "x"}) * 3000 + content,
    ],
)
def test_members_lost_by_damage_are_an_error(tmp_path, damage):
    path = tmp_path / "s.tar"
    path.write_bytes(damage(tar_bytes(MEMBERS)))
    with pytest.raises(TruncatedError):
        list(open_source(str(path)).items())


def test_a_member_with_a_name_outside_is_listed_with_its_reason(tmp_path):
    path = tmp_path / "bad.tar"
    path.write_bytes(tar_bytes({"../x.jpg": A, **MEMBERS, "/y.jpg": B}))
    errors = {name: str(content) for name, content in read(path).items() if content not in (A, B)}
    assert errors == {
        "bad/member-0": ("image path leaves the image folder: '../x.jpg'; give it without '..'"),
        "bad/member-4": ("image path is absolute: '/y.jpg'; give it relative to the image folder"),
    }


def test_a_member_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar, "LARGEST_FILE", len(A) - 1)
    path = tmp_path / "s.tar"
    path.write_bytes(tar_bytes({"a.jpg": A}))
    assert "more than 256 MiB" in str(read(path)["a"])


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


def test_a_near_source_is_proposed_but_no_other_image_of_a_list(tmp_path):
    near = tmp_path / "photos.tar"
    near.write_bytes(tar_bytes(MEMBERS))
    text = str(tmp_path / "photo.tar")
    assert error_of(text) == (
        f"1 of 1 files of {text!r} are missing: {text}; check the path; did you mean {str(near)!r}?"
    )
    (tmp_path / "dog-1.jpg").write_bytes(A)
    names, gone = tmp_path / "list.txt", tmp_path / "dog-2.jpg"
    names.write_text(str(gone))
    [error] = [
        content for _, content in open_source(str(names)).read([*open_source(str(names)).items()])
    ]
    assert str(error) == f"no file {str(gone)!r}; check the path"


def test_a_pattern_without_a_file_is_an_error():
    for text in ("s-{003..001}.tar", "nothing*.tar"):
        assert error_of(text) == f"no file matches {text!r}; check the pattern"


def test_what_changed_since_the_listing_is_an_error_of_each_image(tmp_path, monkeypatch):
    path, gone = tmp_path / "s.tar", tmp_path / "t.tar"
    path.write_bytes(tar_bytes(MEMBERS))
    gone.write_bytes(tar_bytes({"t.jpg": A}))
    source = open_source(str(tmp_path / "{s,t}.tar"))
    items = [*source.items(), SourceItem("c", str(path), "c.jpg")]
    gone.unlink()
    contents = {item.image_id: content for item, content in source.read(sorted(items, key=repr))}
    assert contents.pop("a") == A and contents.pop("b") == B
    assert {name: str(error) for name, error in contents.items()} == {
        "c": f"no whole image 'c.jpg' in {str(path)!r}; copy the tar again",
        "t": f"no file {str(gone)!r}; check the path",
    }
    with pytest.raises(InputError, match="is not in"):
        list(source.read([SourceItem("u", "u.tar", "u.jpg")]))


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


def test_hidden_files_and_texts_of_a_folder_behind_a_url_are_no_images(memory):
    names = ["a.jpg", ".b.jpg", ".hidden/c.jpg", "d.txt", "x/e.PNG"]
    memory.pipe({f"/listed/{name}": A for name in names})
    assert [item.member for item in open_source("memory://listed").items()] == ["a.jpg", "x/e.PNG"]


def test_what_is_no_source_is_an_error(tmp_path):
    path = tmp_path / "notes.md"
    path.touch()
    assert error_of(path) == (
        f"{str(path)!r} is not a list (.txt), a tar (.tar), a table (.parquet, .arrow) or a folder "
        "behind a URL; name one of these"
    )
    assert error_of("nosuch://a/b.tar") == (
        "cannot open 'nosuch://a/b.tar': its protocol is not one of http, https, s3, gs, hf; "
        "check the address"
    )
    (tmp_path / "no.tar").write_bytes(tar_bytes({"a.txt": b"a dog"}))
    text = str(tmp_path / "no.tar")
    assert error_of(text) == f"no images in {text!r}; check the path"


def test_a_folder_is_no_source_and_a_list_is_one(tmp_path):
    assert image_source(tmp_path) is None and image_source(None) is None
    assert image_source(Path("s3://a/{0..1}.tar")) == "s3://a/{0..1}.tar"
    assert image_source(Path("images.txt")) == "images.txt"


def test_bad_and_missing_names_of_parquet_rows_are_listed(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "p.parquet"
    names = ["a/../b.jpg", None, "", None, "nan", "0", "/c.jpg", "d"]
    write_parquet(path, jpg=[A] * len(names), id=names)
    contents = read(path)
    assert [name for name, content in contents.items() if content != A] == ["p/row-0", "p/row-6"]
    assert str(contents["p/row-0"]) == (
        "image path leaves the image folder: 'a/../b.jpg'; give it without '..'"
    )
    assert sorted(contents)[:3] == ["000000000000", "d", "p/row-0"] and len(contents) == 8
    write_parquet(path, jpg=[A] * 3, id=[0.5, float("nan"), float("nan")])
    assert list(read(path)) == ["0.5", "p/row-1", "p/row-2"]


def test_rows_of_parquet_without_bytes_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "train.parquet"
    rows = [(A, None), (None, "cats/1.jpg"), (None, None)]
    write_parquet(path, image=[{"bytes": content, "path": name} for content, name in rows])
    contents = read(path)
    assert list(contents) == ["train/row-0", "000000000001", "train/row-2"]
    assert contents["train/row-0"] == A
    assert str(contents["000000000001"]) == f"no file '{tmp_path}/cats/1.jpg'; check the path"
    assert str(contents["train/row-2"]) == f"row 2 of {str(path)!r} has no image bytes; add them"


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
