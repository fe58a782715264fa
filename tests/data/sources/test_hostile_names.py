"""Lists, tars and names that anyone may have made: nothing runs, nothing is read without bound."""

import base64
import json
import os
import resource
from functools import partial
from itertools import repeat

import fsspec
import pytest

from a2cap.data.errors import InputError, UnreadableError
from a2cap.data.sources import http, location
from a2cap.data.sources.location import exists, expand, open_file, read_file
from a2cap.data.sources.open_source import open_source
from tests.data.messages import message_of
from tests.data.sources.samples import jpeg, tar_bytes
from tests.data.sources.web import serving

A = jpeg(10)


def read_lines(folder, *lines):
    """Return the contents and messages of the images of a list, in its order."""
    path = folder / "list.txt"
    path.write_text("\n".join(lines))
    source = open_source(str(path))
    contents = source.read(list(source.items()))
    return [content if isinstance(content, bytes) else str(content) for _, content in contents]


@pytest.fixture
def fsspec_unused(monkeypatch):
    """Fail if a file system of fsspec is made."""

    def refuse(*arguments, **_options):
        raise AssertionError(f"fsspec opened {arguments}")

    monkeypatch.setattr(fsspec, "filesystem", refuse)
    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)


def test_no_line_of_a_list_runs_code_or_chains_addresses(tmp_path, fsspec_unused):
    run = f"os.system('touch {tmp_path / 'ran'}')"
    template = f"{{{{ cycler.__init__.__globals__.os and {run} }}}}"
    spec = json.dumps({"version": 1, "templates": {"t": template}, "refs": {"a.jpg": ["{{t}}"]}})
    data = base64.b64encode(spec.encode()).decode()
    lines = [
        f"reference://a.jpg::data:application/json;base64,{data}",
        "simplecache::http://127.0.0.1/a.jpg",
        "http::file:///etc/passwd",
        "zip://a.jpg::s3://bucket/a.zip",
        "a::b.jpg",
    ]
    assert read_lines(tmp_path, *lines) == [
        f"cannot open {line!r}: '::' chains addresses; name one address" for line in lines
    ]
    assert not (tmp_path / "ran").exists()


def test_a_line_names_no_other_protocol_and_no_file_elsewhere(tmp_path, fsspec_unused):
    folder = tmp_path / "lists"
    folder.mkdir()
    (tmp_path / "secret.jpg").write_bytes(A)
    protocols = ["ftp", "sftp", "smb", "data", "reference", "github", "memory", "local", "HTTP"]
    assert read_lines(folder, *(f"{name}://a.jpg" for name in protocols)) == [
        f"cannot open '{name}://a.jpg': its protocol is not one of http, https, s3, gs, hf; "
        "check the address"
        for name in protocols
    ]
    outside = [str(tmp_path / "secret.jpg"), f"{folder}x/a.jpg", "/etc/hostname"]
    contents = read_lines(folder, *outside, f"file://{tmp_path}/secret.jpg")
    assert contents == [
        f"{name!r} is outside the folder of {str(folder / 'list.txt')!r}, which names it; "
        "name the folder of the images, or move that file to a folder above them"
        for name in [*outside, str(tmp_path / "secret.jpg")]
    ]
    leaving = ["../secret.jpg", f"{folder}/../secret.jpg", "a/../../secret.jpg"]
    assert all("leaves the image folder" in text for text in read_lines(folder, *leaving))


def test_names_below_the_folder_of_the_list_are_read(tmp_path, fsspec_unused, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.jpg").write_bytes(A)
    ways = ["x/a.jpg", f"{tmp_path}/x/a.jpg", f"file://{tmp_path}/x/a.jpg"]
    for way in ways:
        assert read_lines(tmp_path, way) == [A]
    monkeypatch.chdir(tmp_path)
    assert [content for _, content in open_source("list.txt").read(open_source("list.txt").items())]
    assert [item.image_id for item in open_source("list.txt").items()] == ["x/a"]


def test_one_bad_line_is_listed_and_the_others_are_read(tmp_path):
    (tmp_path / "a.jpg").write_bytes(A)
    contents = read_lines(tmp_path, "a.jpg", "a/../b.jpg", "", "\0.jpg", "x" * 5000, "c.png")
    assert contents == [
        A,
        "image path leaves the image folder: 'a/../b.jpg'; give it without '..'",
        "image path contains a NUL character: '\\x00.jpg'; rename the file",
        f"line of {str(tmp_path / 'list.txt')!r} is too long: {'x' * 40!r}…; shorten it",
        f"no file {str(tmp_path / 'c.png')!r}; check the path",
    ]
    ids = [item.image_id for item in open_source(str(tmp_path / "list.txt")).items()]
    assert ids == ["a", "list/line-2", "list/line-4", "list/line-5", "c"]


def test_a_list_behind_a_url_names_no_file_of_this_machine(memory):
    memory.pipe({"/l/list.txt": b"/etc/hostname\nb.jpg\nfile:///etc/hostname\n", "/l/b.jpg": A})
    source = open_source("memory://l/list.txt")
    first, second, third = (content for _, content in source.read(list(source.items())))
    assert second == A
    for error in (first, third):
        assert str(error).startswith("'/etc/hostname' is outside the folder of ")


def test_what_is_not_a_regular_file_is_rejected_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "folder.jpg").mkdir()
    names = ["fifo.jpg", "zero.jpg", "folder.jpg"]
    assert read_lines(tmp_path, *names) == [
        f"not a regular file: {str(tmp_path / name)!r}; name a file" for name in names
    ]
    os.mkfifo(tmp_path / "fifo.tar")
    assert message_of(lambda: list(open_source(str(tmp_path / "fifo.tar")).items())) == (
        f"not a regular file: {str(tmp_path / 'fifo.tar')!r}; name a file"
    )


def test_a_file_beyond_the_limit_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(location, "LARGEST_FILE", 3 << 20)
    path = tmp_path / "sparse.jpg"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert str(read_file(str(path))) == f"{str(path)!r} has more than 3 MiB; make it smaller"
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 50_000  # KB


def test_answers_without_end_are_cut_off(monkeypatch):
    monkeypatch.setattr(location, "LARGEST_FILE", 3 << 20)
    endless = dict.fromkeys(
        ("/endless", "/endless.jpg", "/endless.tar"), partial(repeat, bytes(1 << 20))
    )
    with serving({**endless, "/trickle.jpg": partial(repeat, b".")}) as server:
        address = server.url
        for path in ("/endless.jpg", "/endless"):
            url = f"{address}{path}"
            assert str(read_file(url)) == f"{url!r} has more than 3 MiB; make it smaller"
        monkeypatch.setattr(http, "_DEADLINE", 0.2)
        error = read_file(f"{address}/trickle.jpg")
        assert isinstance(error, UnreadableError)
        assert str(error) == (
            f"cannot read '{address}/trickle.jpg': no end after 0 seconds; "
            "check the disk or the network"
        )
        message = f"the server of '{address}/endless.tar' states no size; download the file"
        assert message_of(open_file, f"{address}/endless.tar") == message


def test_files_of_web_servers_are_read_whole_and_in_parts(tmp_path):
    tar = tar_bytes({f"{number}.jpg": jpeg(number) for number in range(3)})
    files = {
        "/s.tar": tar,
        "/x/a.jpg": A,
        "/x/list.txt": b"a.jpg\n/x/a.jpg\n",
        "/403": 403,
        "/500": 500,
    }
    with serving(files) as server:
        address = server.url
        source = open_source(f"{address}/s.tar")
        contents = [content for _, content in source.read(source.items())]
        assert contents == [jpeg(number) for number in range(3)]
        assert len(server.requested) <= 8
        listed = open_source(f"{address}/x/list.txt")
        first, second = (content for _, content in listed.read(listed.items()))
        assert first == A and isinstance(second, InputError)
        assert read_lines(tmp_path, f"{address}/x/a.jpg") == [A]
        [item] = open_source(str(tmp_path / "list.txt")).items()
        assert item.image_id == f"{address.removeprefix('http://')}/x/a"
        assert not exists(f"{address}/none.tar")
        assert str(read_file(f"{address}/none.jpg")) == (
            f"no file '{address}/none.jpg'; check the path"
        )
        refused = read_file(f"{address}/403")
        assert isinstance(refused, InputError)
        assert str(refused) == f"cannot open '{address}/403': HTTP 403 Forbidden; check the address"
        assert isinstance(read_file(f"{address}/500"), UnreadableError)
        assert "web servers list no files" in message_of(open_source, f"{address}/*.tar")
        assert isinstance(read_file("http://"), InputError)
        closed = address
    gone = read_file(f"{closed}/x/a.jpg")
    assert isinstance(gone, UnreadableError)
    assert str(gone) == (
        f"cannot read '{closed}/x/a.jpg': [Errno 111] Connection refused; "
        "check the disk or the network"
    )
    with serving(files, parts=False) as server, open_file(f"{server.url}/s.tar") as file:
        file.seek(len(tar) // 2)
        assert "sends no parts" in message_of(file.read, 10)


def test_a_part_is_as_long_as_asked_for_and_bounded():
    content = bytes(range(200))
    with serving({"/a": content, "/list.txt": b""}) as server:
        address = server.url
        files = http.HttpFiles()
        assert files.part(f"{address}/a", 150, 170) == content[150:170]
        assert message_of(files.part, f"{address}/a", 150, 151 + (1 << 30)) == (
            f"'{address}/a' claims 1,073,741,825 bytes in one part; download the file"
        )
        with pytest.raises(OSError, match=r"^10 of 20 bytes came$"):
            files.part(f"{address}/a", 190, 210)
        assert files.info(f"{address}/a")["size"] == 200


def test_patterns_of_too_many_files_are_rejected(monkeypatch):
    assert location._MOST_NAMES == 100_000
    monkeypatch.setattr(location, "_MOST_NAMES", 5000)
    nested = "x"
    for _ in range(40):
        nested = f"{{,{nested}}}"
    for pattern in ("s-{0..99999999}.tar", "{0..99999}{0..99999}", "{0..9}" * 9 + "{5..3}", nested):
        assert message_of(expand, pattern) == (
            f"{pattern!r} names more than 5,000 files; name fewer at once"
        )
    assert len(expand("{1..5000}")) == 5000
    assert expand("{0..0}" * 1100) == ["0" * 1100]
    assert expand(f"{{0..{'9' * 5000}}}") == [f"{{0..{'9' * 5000}}}"]
