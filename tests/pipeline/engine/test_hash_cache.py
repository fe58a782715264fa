"""Cache of file digests: it saves reads and never changes a digest."""

import errno
import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.engine import hash_cache
from a2cap.pipeline.engine.hash_cache import HashCache
from tests.data.messages import message_of
from tests.file_sizes import limited_to


@pytest.fixture
def cache(tmp_path):
    cache = HashCache(tmp_path / "cache" / "hashes.sqlite")
    yield cache
    cache.close()


def digest(cache, files):
    return cache.images(Path("images"), files).digest


def test_a_file_is_read_once_and_again_after_an_edit_that_keeps_size_and_time(
    cache, tmp_path, monkeypatch
):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    reads = []
    monkeypatch.setattr(hash_cache, "sha256_of", lambda p: reads.append(p) or sha256_of(p))
    first = cache.file(path, what="file")
    assert cache.file(path, what="file") == first
    assert len(reads) == 1
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.file(path, what="file").digest != first.digest
    assert len(reads) == 2


def test_a_missing_file_is_reported(cache, tmp_path):
    assert message_of(cache.file, tmp_path / "none.json", what="file of data.annotations") == (
        f"file of data.annotations not found: {str(tmp_path / 'none.json')!r}; check the path"
    )


def test_the_digest_of_images_depends_on_ids_and_content_not_on_paths(cache, tmp_path):
    for name, content in (("a.jpg", b"x"), ("b.jpg", b"y"), ("c.jpg", b"x")):
        (tmp_path / name).write_bytes(content)
    original = digest(cache, {"1": tmp_path / "a.jpg", "2": tmp_path / "b.jpg"})
    assert original == digest(cache, {"2": tmp_path / "b.jpg", "1": tmp_path / "c.jpg"})
    assert original != digest(cache, {"1": tmp_path / "b.jpg", "2": tmp_path / "a.jpg"})
    assert original != digest(cache, {"1": tmp_path / "a.jpg", "3": tmp_path / "b.jpg"})
    assert original != digest(cache, {"1": tmp_path / "a.jpg", "2": None})


def test_the_digests_of_many_images_are_committed_in_groups(cache, tmp_path, many, monkeypatch):
    monkeypatch.setattr(hash_cache, "_COMMITTED_TOGETHER", 4)
    read, kept = [], []

    def digest_of(path):
        if len(read) == 9:  # as another command at that time
            with closing(sqlite3.connect(tmp_path / "cache" / "hashes.sqlite")) as database:
                kept.extend(database.execute("SELECT path FROM digests"))
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(hash_cache, "sha256_of", digest_of)
    first = digest(cache, many)
    assert {name for (name,) in kept} == {str(path) for path in read[:8]}
    other = HashCache(tmp_path / "cache" / "hashes.sqlite")
    monkeypatch.setattr(hash_cache, "sha256_of", None)
    assert digest(other, many) == first
    other.close()


def test_a_damaged_cache_costs_only_time(tmp_path, caplog):
    (tmp_path / "hashes.sqlite").write_bytes(
        b"no database, but long enough to be taken for one" * 9
    )
    (tmp_path / "file").write_bytes(b"content")
    cache = HashCache(tmp_path / "hashes.sqlite")
    assert (
        cache.file(tmp_path / "file", what="file").digest == hashlib.sha256(b"content").hexdigest()
    )
    cache.close()
    assert caplog.messages == [
        f"file digests are not cached: {str(tmp_path / 'hashes.sqlite')!r} (file is not a database)"
    ]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_may_not_be_written_costs_only_time(tmp_path, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").write_bytes(b"content")
    monkeypatch.setattr(Path, "mkdir", refuse)
    cache = HashCache(tmp_path / "none" / "hashes.sqlite")
    source = cache.file(tmp_path / "file", what="file")
    assert source.digest == hashlib.sha256(b"content").hexdigest()
    cache.close()


def test_a_cache_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    cache = HashCache(tmp_path / "file" / "artifacts" / "hashes.sqlite")
    with pytest.raises(NotADirectoryError):
        cache.file(tmp_path / "file", what="file")


def test_a_cache_that_digests_nothing_makes_no_folder(tmp_path):
    HashCache(tmp_path / "mistyped" / "hashes.sqlite").close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def many(tmp_path):
    """Write a hundred files with long names, and return image id -> file."""
    files = {str(number): tmp_path / f"{number:0100d}" for number in range(100)}
    for path in files.values():
        path.write_text(path.name)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("bytes_of_file", [0, 9000])
def test_a_cache_on_a_full_disk_costs_only_time(cache, tmp_path, many, bytes_of_file):
    with limited_to(bytes_of_file):
        limited = HashCache(tmp_path / "hashes.sqlite")
        expected = digest(limited, many)
        limited.close()
    assert expected == digest(cache, many)
    later = HashCache(tmp_path / "hashes.sqlite")
    assert digest(later, many) == expected
    later.close()


def test_a_cache_with_damaged_pages_costs_only_time(cache, tmp_path, many):
    expected = digest(cache, many)
    cache.close()
    path = tmp_path / "cache" / "hashes.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"x" * (len(content) - 4096))
    damaged = HashCache(path)
    assert digest(damaged, many) == expected
    damaged.close()


def test_a_forgotten_cache_closes_its_database(tmp_path):
    cache = HashCache(tmp_path / "hashes.sqlite")
    database = cache._database
    del cache
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.execute("SELECT 1")


def test_names_are_read_once_and_again_from_other_files_or_by_other_rules(cache, tmp_path):
    (tmp_path / "one").write_text("1")
    reads = []

    def names(rules="", of=cache):
        read = (tmp_path / "one").read_text()
        return of.names([tmp_path / "one"], rules, lambda: reads.append(read) or {read: rules})

    other = HashCache(tmp_path / "cache" / "hashes.sqlite")
    assert names() == names(of=other) == {"1": ""}
    other.close()
    assert names("path") == {"1": "path"}
    (tmp_path / "one").write_text("2")
    assert names("path") == names("path") == {"2": "path"}
    assert reads == ["1", "1", "2"]


def test_names_of_a_file_that_is_replaced_meanwhile_or_damaged_are_read_again(cache, tmp_path):
    (tmp_path / "one").write_text("old")

    def replace():
        (tmp_path / "one").write_text("new")
        return {"1": "new"}

    cache.names([tmp_path / "one"], "", replace)
    (tmp_path / "one").write_text("old")
    assert cache.names([tmp_path / "one"], "", lambda: {"1": "old"}) == {"1": "old"}
    cache._database.execute("UPDATE named SET names = '[1'")
    assert cache.names([tmp_path / "one"], "", lambda: {"1": "again"}) == {"1": "again"}
