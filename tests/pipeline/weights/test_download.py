"""Downloads from a local server that drops, truncates and lies."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from a2cap.pipeline.weights import download as transfer
from a2cap.pipeline.weights.download import DownloadError, download

CONTENT = bytes(range(256)) * 40


class Server(ThreadingHTTPServer):
    """Serves CONTENT by the next of `behaviours`, the last one for good; keeps the ranges asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = ["whole"]
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        behaviours = self.server.behaviours
        behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if behaviour.isdigit():
            self.send_error(int(behaviour))
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if behaviour == "no ranges":
            start = 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.end_headers()
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        if start:
            place = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
            self.send_header(
                "Content-Range", place if behaviour != "wrong range" else "bytes 1-2/3"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if behaviour == "drops" else body)


@pytest.fixture
def server():
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "folder" / "file.bin"


def partial(target):
    return target.with_name("file.bin.partial")


def test_a_file_comes_whole_and_is_not_fetched_again(server, target):
    download(server.url, target)
    download(server.url, target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]
    assert server.ranges == [None]


def test_a_connection_that_drops_is_taken_up_where_it_stopped(server, target):
    server.behaviours = ["drops", "drops", "whole"]
    download(server.url, target, pause=0)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=5120-", "bytes=7680-"]


def test_what_an_earlier_run_got_is_continued(server, target):
    target.parent.mkdir()
    partial(target).write_bytes(CONTENT[:100])
    download(server.url, target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=100-"]


@pytest.mark.parametrize("behaviour", ["no ranges", "wrong range"])
def test_a_server_without_ranges_sends_all_again(server, target, behaviour):
    server.behaviours = [behaviour, "no ranges"]
    target.parent.mkdir()
    partial(target).write_bytes(b"x" * 100)
    if behaviour == "no ranges":
        download(server.url, target, pause=0)
        assert target.read_bytes() == CONTENT


def test_a_whole_partial_needs_no_further_byte_and_one_that_is_too_long_goes(server, target):
    target.parent.mkdir()
    partial(target).write_bytes(CONTENT)
    download(server.url, target, pause=0)
    assert target.read_bytes() == CONTENT
    target.unlink()
    partial(target).write_bytes(CONTENT + b"more")
    download(server.url, target, pause=0)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=10240-", "bytes=10244-", None]


def test_a_server_that_never_sends_all_is_given_up_and_leaves_no_file(server, target):
    server.behaviours = ["503", "drops"]
    with pytest.raises(DownloadError) as caught:
        download(server.url, target, pause=0)
    assert str(caught.value) == (
        f"cannot fetch {server.url}: the answer ended after 9,600 of 10,240 bytes; "
        "check the network, or name a folder that holds it"
    )
    assert not target.exists()
    assert len(server.ranges) == transfer._TRIES


def test_a_file_that_is_not_there_is_asked_for_once(server, target):
    server.behaviours = ["404"]
    with pytest.raises(DownloadError) as caught:
        download(server.url, target, pause=0)
    assert str(caught.value) == (
        f"cannot fetch {server.url}: HTTP 404 Not Found; name a folder that holds it instead"
    )
    assert server.ranges == [None]


def test_no_network_is_one_line(target):
    with pytest.raises(DownloadError) as caught:
        download("http://127.0.0.1:1/file.bin", target, pause=0)
    assert str(caught.value) == (
        "cannot fetch http://127.0.0.1:1/file.bin: <urlopen error [Errno 111] Connection refused>; "
        "check the network, or name a folder that holds it"
    )
