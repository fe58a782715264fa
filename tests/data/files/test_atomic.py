import os

import pytest

from a2cap.data.files.atomic import discard, link_or_copy, replacing, write_durably


def test_a_written_file_replaces_the_old_one_and_leaves_no_other(tmp_path):
    path = tmp_path / "x"
    for content in (b"old", b"new"):
        write_durably(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as temporary:
        temporary.write_text("part")
        raise OSError("full")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]  # the partial file takes space


def test_what_a_killed_process_left_is_overwritten(tmp_path):
    (tmp_path / ".x.partial").write_text("part")
    write_durably(tmp_path / "x", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("length", [246, 247, 255])
def test_a_file_has_the_longest_name_that_is_possible(tmp_path, length):
    write_durably(tmp_path / ("x" * length), b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["x" * length]


def test_a_discarded_folder_is_gone_with_the_remains_of_an_interrupted_removal(tmp_path):
    for name in ("a", "a.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for _ in range(2):  # removing nothing is not an error
        discard(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_emptied_loses_its_name(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("a file on NFS is open")

    (tmp_path / "a").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuse)
        discard(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.removed"]
    discard(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_a_second_name_replaces_a_file_and_is_a_copy_without_hard_links(
    tmp_path, monkeypatch, has_links
):
    def refuse(*names):
        raise OSError("no hard links")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    link_or_copy(source, target)
    assert target.read_text() == "new"
    assert target.samefile(source) == has_links
    link_or_copy(source, tmp_path / "another")  # nothing to replace
