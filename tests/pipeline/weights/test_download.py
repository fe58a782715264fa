"""Downloads from a local server that fails and truncates."""

import errno
import io
import logging
from contextlib import contextmanager

import pytest
from requests import Response
from requests.adapters import HTTPAdapter

from a2cap.pipeline.engine import progress
from a2cap.pipeline.weights import download as transfer
from a2cap.pipeline.weights.download import DownloadError, download
from tests.data.messages import message_of

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def target(tmp_path):
    return tmp_path / "folder" / "file.bin"


def test_a_file_is_downloaded_once(host, target):
    host.files["/file.bin"] = CONTENT
    download(f"{host.url}/file.bin", target)
    download(f"{host.url}/file.bin", target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]
    assert host.requested == ["/file.bin"]


def test_the_progress_ends_at_the_size_of_the_file(host, target, monkeypatch):
    started = []

    @contextmanager
    def track(what, *, total):
        with progress.track(what, total=total) as tracked:
            started.append(tracked)
            yield tracked

    monkeypatch.setattr(transfer, "track", track)
    host.files["/file.bin"] = CONTENT
    download(f"{host.url}/file.bin", target)
    [tracked] = started
    assert (tracked.what, tracked.total, tracked.done) == ("file.bin", len(CONTENT), len(CONTENT))


def test_a_dropped_connection_is_tried_again(host, target, caplog):
    caplog.set_level(logging.INFO, logger=transfer.__name__)
    host.files["/file.bin"] = [503, "drop", CONTENT]
    download(f"{host.url}/file.bin", target, pause=0)
    assert target.read_bytes() == CONTENT
    assert caplog.messages == [
        "file.bin: try 1 of 5: HTTP 503 Service Unavailable",
        "file.bin: try 2 of 5: IncompleteRead(5 bytes read, 5 more expected)",
    ]


@pytest.mark.parametrize(
    ("answers", "requests", "reason"),
    [
        (
            [503, "drop"],
            5,
            "IncompleteRead(5 bytes read, 5 more expected); check the network, or name a folder "
            "that contains it",
        ),
        (404, 1, "HTTP 404 Not Found; name a folder that contains it instead"),
    ],
)
def test_a_download_that_never_completes_leaves_no_file(host, target, answers, requests, reason):
    host.files["/file.bin"] = answers
    message = message_of(download, f"{host.url}/file.bin", target, pause=0, error=DownloadError)
    assert message == f"cannot download {host.url}/file.bin: {reason}"
    assert list(target.parent.iterdir()) == []
    assert len(host.requested) == requests


@pytest.mark.parametrize("length", ["many", "-7", "1.5"])
def test_a_length_that_is_not_a_number_counts_as_unknown(host, target, length):
    host.files["/file.bin"], host.length = CONTENT, length
    download(f"{host.url}/file.bin", target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("length", [None, "99999999999", "many"])
def test_a_download_without_bound_ends_and_leaves_no_file(host, target, monkeypatch, length):
    monkeypatch.setattr(transfer, "LIMIT", len(CONTENT) - 1)
    host.files["/file.bin"], host.length = CONTENT, length
    assert message_of(download, f"{host.url}/file.bin", target, pause=0, error=DownloadError) == (
        f"cannot download {host.url}/file.bin: it has more than 0 GB, which no known file has; "
        "get the file elsewhere"
    )
    assert list(target.parent.iterdir()) == []
    assert len(host.requested) == 1


def test_https_that_leads_to_plain_http_is_refused(host, target, monkeypatch):
    host.files["/file.bin"] = CONTENT
    send = HTTPAdapter.send

    def redirect(adapter, request, **options):
        if not request.url.startswith("https:"):
            return send(adapter, request, **options)
        response = Response()
        response.status_code, response.url, response.request = 302, request.url, request
        response.headers["Location"] = f"{host.url}/file.bin"
        response.raw = io.BytesIO()
        return response

    monkeypatch.setattr(HTTPAdapter, "send", redirect)
    assert message_of(download, "https://known/file.bin", target, error=DownloadError) == (
        f"cannot download https://known/file.bin: it leads to {host.url}/file.bin, a connection "
        "that anyone on its way can change; get the file elsewhere"
    )
    assert list(target.parent.iterdir()) == []


def test_a_missing_network_is_reported_in_one_line(target):
    assert message_of(
        download, "http://127.0.0.1:1/file.bin", target, pause=0, error=DownloadError
    ) == (
        "cannot download http://127.0.0.1:1/file.bin: [Errno 111] Connection refused; "
        "check the network, or name a folder that contains it"
    )


def test_a_full_disk_is_not_tried_again(target, monkeypatch):
    tries = []

    def fail(*arguments):
        tries.append(arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "_stream", fail)
    with pytest.raises(OSError, match="No space left on device"):
        download("https://example.org/file.bin", target)
    assert len(tries) == 1
