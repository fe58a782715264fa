import logging
from pathlib import Path

import pytest

from a2cap.data.files.cache import cache_folder, read_entry, write_entry


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a2_cache_overrides_xdg_cache_home_which_overrides_home(monkeypatch, tmp_path):
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("A2_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "a2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path) / ".cache" / "a2"


def test_an_entry_is_read_as_written(folder):
    assert read_entry("kind/name") is None
    for content in (b"", b"one\ntwo", b"\x00" * 100):
        write_entry("kind/name", content)
        assert read_entry("kind/name") == content
    assert [path.name for path in (folder / "kind").iterdir()] == ["name"]


def test_a_damaged_entry_counts_as_missing_and_is_logged(folder, caplog):
    caplog.set_level(logging.INFO)
    write_entry("name", b"content")
    whole = (folder / "name").read_bytes()
    for damaged in (whole[:-1], whole + b"x", whole[:10], b""):
        (folder / "name").write_bytes(damaged)
        assert read_entry("name") is None
    assert caplog.messages == [f"recomputing a damaged cache entry: {folder / 'name'}"] * 4


def test_a_folder_that_cannot_be_written_is_logged_and_not_an_error(folder, caplog):
    caplog.set_level(logging.DEBUG)
    folder.write_text("a file is in its place")
    write_entry("kind/name", b"content")
    assert "cannot write cache file" in caplog.text
    assert read_entry("kind/name") is None


def test_a_failed_write_leaves_no_file(folder, monkeypatch):
    def fail(*_):
        raise OSError

    monkeypatch.setattr(Path, "replace", fail)
    write_entry("name", b"content")
    assert list(folder.iterdir()) == []
