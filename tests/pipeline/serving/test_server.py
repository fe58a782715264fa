"""The page of `a2 serve`: captions of images that are sent, and requests that are refused."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2cap.data.errors import ConfigError
from a2cap.pipeline.captioning.caption_images import ImageCaptioner, caption_files
from a2cap.pipeline.captioning.config import CaptioningConfig
from a2cap.pipeline.captioning.given_boxes import NamedImage
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.serving import server as serving
from a2cap.pipeline.serving.server import CaptionServer
from tests.data.messages import message_of
from tests.experiments import detecting

HOW = {"decoding": CaptioningConfig(beam_size=2), "runtime": RuntimeConfig(device="cpu")}


@pytest.fixture(scope="module")
def model(experiment, tmp_path_factory):
    copy = tmp_path_factory.mktemp("served") / "model"
    ignored = shutil.ignore_patterns("manifest.json")  # with which changes would be damage
    shutil.copytree(experiment.directory("train-xe"), copy, ignore=ignored)
    detecting(copy)
    return copy


@pytest.fixture(scope="module")
def server(model):
    started = CaptionServer(ImageCaptioner([model], **HOW), port=0)
    thread = threading.Thread(target=started.serve_forever)
    thread.start()
    yield started
    started.shutdown()
    thread.join()
    started.server_close()


@pytest.fixture
def scene(experiment):
    return min((experiment.scenes / "images").iterdir())


def request(server, method, path, body=None, **headers):
    """Send one request; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def refused(*arguments, **options):
    """Return status and error of a request."""
    status, _, body = request(*arguments, **options)
    return status, json.loads(body)["error"]


def test_an_image_is_captioned_as_by_the_command(server, model, scene):
    status, headers, body = request(server, "POST", "/caption", scene.read_bytes())
    assert (status, headers["Content-Type"]) == (200, "application/json")
    found = json.loads(body)
    [(_, expected)] = caption_files([NamedImage(scene)], models=[model], boxes=None, **HOW)
    assert [beam["caption"] for beam in found["beams"]] == [b.caption for b in expected.beams]
    assert found["beams"][0]["score"] == pytest.approx(expected.beams[0].score)
    assert found["figure"].startswith("iVBORw0KGgo")  # a PNG


def test_the_page_is_served_with_a_policy_that_loads_nothing_else(server):
    status, headers, body = request(server, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == Path(serving.__file__).with_name("page.html").read_bytes()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")


@pytest.mark.parametrize("path", ["/etc/passwd", "/../../etc/passwd", "/page.html"])
def test_no_path_of_a_request_is_opened(server, path):
    assert refused(server, "GET", path) == (404, "no such page; open /")
    assert refused(server, "POST", path, b"x") == (
        404,
        "no such page; send an image to /caption",
    )


def test_another_host_name_is_refused(server):
    expected = (404, "no such page; send an image to /caption")
    assert refused(server, "POST", "/caption", b"x", Host="example.org") == expected


@pytest.mark.slow
def test_an_unusable_image_is_an_error_and_the_server_goes_on(server, scene):
    status, error = refused(server, "POST", "/caption", b"<html>")
    assert status == 422
    assert error.startswith("image 'image' is not in a supported format")
    assert request(server, "POST", "/caption", scene.read_bytes())[0] == 200


def test_a_request_above_the_limit_is_refused(server, monkeypatch):
    monkeypatch.setattr(serving, "LARGEST", 10)
    assert refused(server, "POST", "/caption", b"x" * 1000) == (
        413,
        "the image has 1,000 bytes, the limit is 10; scale it down",
    )


@pytest.mark.parametrize("length", [None, "-1", "a", "9" * 5000])
def test_a_request_without_a_valid_length_is_refused(server, length):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    connection.putrequest("POST", "/caption")
    if length is not None:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (
        411,
        {"error": "no Content-Length; send it"},
    )


@pytest.mark.slow
def test_a_captioner_of_given_boxes_and_a_taken_port_are_refused(experiment, server, model):
    given = ImageCaptioner([experiment.directory("train-xe")], **HOW)
    assert message_of(CaptionServer, given, port=0, error=ConfigError) == (
        "the captioner was trained on given boxes, which an image does not have; "
        "name one that was trained on detected boxes"
    )
    captioner = ImageCaptioner([model], **HOW)
    message = message_of(CaptionServer, captioner, port=server.server_port, error=ConfigError)
    assert message == (
        f"cannot listen on port {server.server_port}: Address already in use; choose another --port"
    )


@contextmanager
def running(model):
    command = [sys.executable, "-m", "a2cap.pipeline", "serve", "--model", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_command_prints_its_address_and_stops_quietly(model):
    with running(model) as process:
        url, _, rest = process.stdout.readline().partition(" ")
        assert rest == "captions the images dropped on it; Ctrl-C stops\n"
        port = int(url.removeprefix("http://127.0.0.1:"))
        with socket.create_connection(("127.0.0.1", port)):
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(timeout=600) == 0


@pytest.mark.slow
@pytest.mark.chromium
def test_a_chosen_image_shows_its_caption_and_its_attention(server, browser, scene):
    page = browser.new_page(viewport={"width": 360, "height": 800})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.url)
    page.set_input_files("#file", scene)
    page.wait_for_selector("#figure:not([hidden])", timeout=600_000)
    shown = page.inner_text("#caption")
    assert shown == page.inner_text("#beams li:first-child").rsplit(" ", 2)[0]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"<script>"})
    page.wait_for_selector("#caption:has-text('is not in a supported format')", timeout=600_000)
    assert page.is_hidden("#figure")
    page.close()
    assert complaints == []
