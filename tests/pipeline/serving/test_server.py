"""The page of `a2 serve`: captions of images that are sent, and requests that are refused."""

import errno
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from a2cap.data.errors import ConfigError
from a2cap.data.regions import Regions
from a2cap.pipeline.captioning.caption_images import caption_files
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.image_captioner import ImageCaptioner
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.serving import caption_queue
from a2cap.pipeline.serving import server as serving
from a2cap.pipeline.serving.server import CaptionServer
from tests.data.messages import message_of
from tests.experiments import copied_captioner, detecting

HOW = {"decoding": CaptioningConfig(beam_size=2), "runtime": RuntimeConfig(device="cpu")}


@pytest.fixture(scope="module")
def model(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    copy = copied_captioner(experiment.directory("train-xe"), folder)
    detecting(copy)
    return copy


@contextmanager
def listening(captioner):
    server = CaptionServer(captioner, name="a <model>", port=0)
    thread = threading.Thread(target=server.run, args=([server.socket],))
    thread.start()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def server(model):
    with listening(ImageCaptioner([model], **HOW)) as started:
        yield started


@pytest.fixture
def scene(experiment):
    return min((experiment.scenes / "images").iterdir())


def request(server, method, path, body=None, **headers):
    """Send one request; return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
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
    answer = json.loads(body)
    [(_, expected)] = caption_files([NamedImage(scene)], models=[model], boxes=None, **HOW)
    assert [beam["caption"] for beam in answer["beams"]] == [b.caption for b in expected.beams]
    assert answer["score"] == pytest.approx(expected.beams[0].score)
    assert (answer["model"], answer["width"]) == ("a <model>", expected.regions.width)
    assert answer["card"]["attention"]["tokens"] == expected.beams[0].caption.split()
    assert answer["seconds"] > 0
    status, headers, body = request(server, "POST", "/figure", scene.read_bytes())
    assert (status, headers["Content-Type"], body[:4]) == (200, "image/png", b"\x89PNG")


def test_the_page_is_served_with_a_policy_that_loads_nothing_else(server):
    status, headers, body = request(server, "GET", "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert (
        "Trained on drawings of a2 scenes; captions of photographs mean nothing." in body.decode()
    )
    assert "a &lt;model&gt;" in body.decode()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert not re.search(rb"https?://|src=.?//|@import|url[(]", body)  # nothing from outside


@pytest.mark.parametrize("path", ["/etc/passwd", "/../../etc/passwd", "/page.html"])
def test_no_path_of_a_request_is_opened_and_no_other_host_is_answered(server, path):
    assert refused(server, "GET", path) == (404, "no such page; open /")
    no_page = (404, "no such page; send an image to /caption")
    assert refused(server, "POST", path, b"x") == no_page
    for method in ("GET", "POST"):
        status, _, body = request(server, method, "/", Host=f"example.org:{server.port}")
        assert (status, body) == (400, b"Invalid host header")
    assert refused(server, "PUT", path, b"x") == (404, "no such page; open /")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_an_image_sent_by_another_page_is_refused(server, headers):
    message = f"sent by another page; open {server.url}"
    assert refused(server, "POST", "/caption", b"x", **headers) == (403, message)


def test_an_image_sent_by_the_page_is_used(server):
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{server.port}"
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        status, error = refused(server, "POST", "/caption", b"x", **headers)
        assert (status, error[:7]) == (422, "image '")


ONE = np.ones((1, 4), np.float32)
FOUND = Regions(4 * ONE, ONE, ONE[0, :1], ONE[0, :1].astype(np.int32), None, width=4, height=4)


@dataclass
class FixedCaptioner:
    """A captioner of one caption, which waits until it may go on."""

    going_on: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    about: str = ""
    reads_boxes: bool = False
    batches: list[int] = field(default_factory=list)

    def caption_each(self, images, *, attention):
        assert attention
        self.started.set()
        assert self.going_on.wait(60)
        heights = [image().pixels.shape[0] for image in images]
        if 1 in heights:
            raise RuntimeError("a fault of the captioner")
        self.batches.append(len(heights))
        return [CaptionedImage([Beam("a dog", -1.0)], FOUND) for _ in heights]


@contextmanager
def serving_fixed():
    captioner = FixedCaptioner()
    with listening(captioner) as server:
        try:
            yield server, captioner
        finally:
            captioner.going_on.set()


def started_upload(server, length, sent=b""):
    """Return a connection that has sent a part of an image."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", "/caption")
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    connection.send(sent)
    return connection


def until(condition):
    """Wait for a condition."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_unfinished_uploads_fill_neither_memory_nor_disk(scene, monkeypatch):
    monkeypatch.setattr(serving, "MOST_BYTES", 100 << 20)
    part = bytes(24 << 20)
    with serving_fixed() as (server, captioner):
        captioner.going_on.set()
        # the first image also loads libraries
        assert request(server, "POST", "/caption", scene.read_bytes())[0] == 200
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held = [started_upload(server, 48 << 20, part) for _ in range(2)]
        until(lambda: server.bytes == 96 << 20)
        status, headers, body = request(server, "POST", "/caption", bytes(5 << 20))
        assert (status, headers["Retry-After"]) == (503, "60")
        assert json.loads(body) == {"error": "too many images wait; send it again in 60 s"}
        assert request(server, "POST", "/caption", scene.read_bytes())[0] == 200
        for connection in held:
            connection.close()
        until(lambda: server.bytes == 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000  # KB; 48 MB are sent


def test_an_upload_that_trickles_ends(monkeypatch):
    monkeypatch.setattr(serving, "UPLOAD_SECONDS", 0.2)
    with serving_fixed() as (server, _):
        with (
            closing(started_upload(server, 1000)) as connection,
            pytest.raises((ConnectionError, http.client.HTTPException)),
        ):
            for _ in range(500):
                connection.send(b".")
                time.sleep(0.02)
        until(lambda: server.bytes == 0)


def test_beyond_the_limit_the_connection_that_waits_longest_is_closed(monkeypatch, scene):
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 2)
    image = scene.read_bytes()
    with serving_fixed() as (server, captioner), ExitStack() as opened:
        captioned = opened.enter_context(closing(started_upload(server, len(image), image)))
        assert captioner.started.wait(60)
        oldest = opened.enter_context(closing(started_upload(server, 10)))
        for length in (20, 30):
            newest = opened.enter_context(closing(started_upload(server, length)))
            with pytest.raises(ConnectionError):
                oldest.getresponse()
            until(lambda length=length: server.bytes == len(image) + length)
            oldest = newest
        captioner.going_on.set()
        assert captioned.getresponse().status == 200


HEADERS = b"POST /caption HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", HEADERS, HEADERS + b"\r\n12345678"])
def test_256_half_sent_requests_keep_no_others_out(scene, sent):
    with serving_fixed() as (server, captioner), ExitStack() as held:
        captioner.going_on.set()
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", server.port))
            held.enter_context(connection).sendall(sent)
        assert request(server, "POST", "/caption", scene.read_bytes())[0] == 200
        assert len(server.server_state.connections) <= 256


def test_a_connection_has_a_limited_time_for_its_headers(monkeypatch, scene):
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.2)
    with serving_fixed() as (server, captioner):
        captioner.going_on.set()
        with closing(started_upload(server, len(scene.read_bytes()))) as slow:
            with (
                socket.create_connection(("127.0.0.1", server.port)) as trickling,
                pytest.raises(ConnectionError),
            ):
                for _ in range(500):
                    trickling.sendall(HEADERS[:1])
                    time.sleep(0.02)
            slow.send(scene.read_bytes())  # its headers had arrived
            assert slow.getresponse().status == 200


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (HEADERS + b"X: " + b"x" * 70_000, b"HTTP/1.1 400 "),
        (
            HEADERS.replace(b"Content-Length: 9", b"Transfer-Encoding: chunked") + b"\r\n5\r\n",
            b"411",
        ),
        (HEADERS + b"Transfer-Encoding: chunked\r\n\r\n9\r\n", b"411"),
        (HEADERS.replace(b" HTTP/1.1", b"") + b"\r\n", b"400"),
        (HEADERS + HEADERS.partition(b"\n")[2] + b"\r\n", b"400"),  # two hosts
        (b"\x16\x03\x01\x02\x00", b"400"),  # TLS
    ],
)
def test_what_is_not_a_request_of_an_image_is_answered_at_once(server, sent, answer):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(60)
        connection.sendall(sent)
        assert answer in connection.recv(4096).partition(b"\n")[0]


@pytest.mark.parametrize("failing", ["open", "write"])
def test_a_full_temporary_disk_is_one_clear_answer(monkeypatch, scene, caplog, capfd, failing):
    class Full(BytesIO):
        def write(self, chunk):
            raise OSError(errno.ENOSPC, "No space left on device")

    def opened(**options):
        if failing == "open":
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
        return Full()

    reason = {"open": "No usable temporary directory found in ['/tmp']"}
    monkeypatch.setattr(serving.tempfile, "TemporaryFile", opened)
    with serving_fixed() as (server, captioner):
        captioner.going_on.set()
        reason = reason.get(failing, "No space left on device")
        assert refused(server, "POST", "/caption", scene.read_bytes()) == (
            507,
            f"the server's disk for temporary files fails: {reason}; free space there, or start "
            "the server with another TMPDIR",
        )
        monkeypatch.undo()
        assert request(server, "POST", "/caption", scene.read_bytes())[0] == 200
    assert caplog.messages == [f"cannot keep an image: {reason}"]
    assert capfd.readouterr().err == ""


def test_an_upload_has_no_name_that_a_killed_server_would_leave(monkeypatch, scene, tmp_path):
    monkeypatch.setattr(serving.tempfile, "tempdir", str(tmp_path))
    with serving_fixed() as (server, captioner), ThreadPoolExecutor(1) as pool:
        sent = pool.submit(request, server, "POST", "/caption", scene.read_bytes())
        assert captioner.started.wait(60)
        assert list(tmp_path.iterdir()) == []
        captioner.going_on.set()
        assert sent.result()[0] == 200


def test_a_page_closed_early_is_no_error(scene, capfd, caplog):
    with serving_fixed() as (server, captioner):
        image = scene.read_bytes()
        connection = started_upload(server, len(image), image)
        assert captioner.started.wait(60)
        reset = struct.pack("ii", 1, 0)  # so that the answer meets a closed connection
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()
        captioner.going_on.set()
        until(lambda: not server.server_state.connections)
        assert request(server, "POST", "/caption", image)[0] == 200
    assert capfd.readouterr().err == "" and not caplog.records


def test_images_that_wait_are_captioned_in_batches_and_too_many_are_refused(scene, monkeypatch):
    monkeypatch.setattr(caption_queue, "MOST_WAITING", 40)
    with serving_fixed() as (server, captioner), ThreadPoolExecutor(60) as pool:
        image = scene.read_bytes()
        first = pool.submit(request, server, "POST", "/caption", image)
        assert captioner.started.wait(60)
        sent = [pool.submit(request, server, "POST", "/caption", image) for _ in range(50)]
        until(lambda: sum(pending.done() for pending in sent) == 10)
        for status, headers, body in (pending.result() for pending in sent if pending.done()):
            assert (status, headers["Retry-After"]) == (503, "20")  # 40 images of half a second
            assert json.loads(body) == {"error": "too many images wait; send it again in 20 s"}
        captioner.going_on.set()
        assert sorted(pending.result()[0] for pending in sent) == [200] * 40 + [503] * 10
        assert first.result()[0] == 200
        assert captioner.batches == [1, 16, 16, 8]


def test_a_fault_of_one_image_leaves_the_others(scene, caplog):
    fault = BytesIO()
    Image.new("RGB", (4, 1)).save(fault, "PNG")
    with serving_fixed() as (server, captioner), ThreadPoolExecutor(4) as pool:
        images = [scene.read_bytes(), fault.getvalue(), b"<script>", scene.read_bytes()]
        sent = [pool.submit(request, server, "POST", "/caption", images[0])]
        assert captioner.started.wait(60)  # the others wait: <script> would be answered at once
        sent += [pool.submit(request, server, "POST", "/caption", image) for image in images[1:]]
        until(lambda: server.bytes == sum(map(len, images)))
        captioner.going_on.set()
        answers = [pending.result() for pending in sent]
        assert [status for status, *_ in answers] == [200, 500, 422, 200]
        assert json.loads(answers[1][2]) == {
            "error": "cannot caption this image; the server's messages state why"
        }
    assert [record.message for record in caplog.records] == ["cannot caption an image"]


def test_a_server_that_stops_captions_no_waiting_image(scene):
    with serving_fixed() as (server, captioner), ThreadPoolExecutor(3) as pool:
        image = scene.read_bytes()
        first = pool.submit(request, server, "POST", "/caption", image)
        assert captioner.started.wait(60)
        second = pool.submit(refused, server, "POST", "/caption", image)
        until(lambda: server.bytes == 2 * len(image))
        server.should_exit = True
        until(lambda: server.queue._is_closed)
        captioner.going_on.set()
        assert first.result()[0] == 200
        assert second.result() == (503, "the server stops; start it again")


def test_a_server_that_stops_waits_for_its_threads_but_for_no_client():
    before = set(threading.enumerate())
    with serving_fixed() as (server, _):
        silent = socket.create_connection(("127.0.0.1", server.port))
        unfinished = started_upload(server, 10)
        until(lambda: server.bytes == 10 and len(server.server_state.connections) == 2)
        start = time.monotonic()
    assert time.monotonic() - start < 30  # a connection may be silent for 60 s
    assert set(threading.enumerate()) == before
    assert unfinished.getresponse().status == 503
    with silent:
        assert silent.recv(1) == b""


def test_a_request_above_the_limit_is_refused(server, monkeypatch):
    monkeypatch.setattr(serving, "LARGEST", 10)
    assert refused(server, "POST", "/caption", b"x" * 1000) == (
        413,
        "the image has 1,000 bytes, the limit is 10; scale it down",
    )


@pytest.mark.parametrize("length", [None, "-1", "a", "9" * 5000])
def test_a_request_without_a_valid_length_is_refused(server, length):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.putrequest("POST", "/caption")
    if length is not None:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    answer = connection.getresponse()
    if length is None:
        assert json.loads(answer.read()) == {"error": "no Content-Length; send it"}
    assert answer.status == (411 if length is None else 400)


@pytest.mark.slow
def test_without_uvicorn_the_message_names_the_extra():
    program = (
        "import sys; sys.modules['uvicorn'] = None; "
        "from a2cap.pipeline.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "serve", "--model", "scenes"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        2,
        'a2: a2 serve needs uvicorn; run pip install "a2cap[serve]"\n',
    )


@pytest.mark.slow
def test_a_captioner_of_given_boxes_and_a_taken_port_are_refused(experiment, server, model):
    given = ImageCaptioner([experiment.directory("train-xe")], **HOW)
    assert message_of(CaptionServer, given, name="", port=0, error=ConfigError) == (
        "the captioner was trained on given boxes, which an image does not have; "
        "name one that was trained on detected boxes"
    )
    captioner = ImageCaptioner([model], **HOW)
    message = message_of(CaptionServer, captioner, name="", port=server.port, error=ConfigError)
    assert message == (
        f"cannot listen on port {server.port}: Address already in use; choose another --port"
    )


@contextmanager
def running(model):
    command = [sys.executable, "-m", "a2cap.pipeline", "serve", "--model", model, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("presses", "code", "messages"),
    [(1, 0, []), (2, 130, ["a2: stopped; run the same command again to restart"])],
)
def test_the_command_prints_its_address_and_stops_quietly(model, presses, code, messages):
    with running(model) as process:
        url, _, rest = process.stdout.readline().partition(" ")
        assert rest == "captions the images dropped on it; Ctrl-C stops\n"
        port = int(url.removeprefix("http://127.0.0.1:"))
        image = BytesIO()  # large: it must not be captioned before the last press
        Image.new("RGB", (6000, 4000)).save(image, "JPEG")
        head = f"POST /caption HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        head += f"Content-Length: {len(image.getvalue())}\r\n\r\n"
        with ExitStack() as stack:
            for _ in range(6):
                sending = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                sending.sendall(head.encode() + image.getvalue())
            for _ in range(presses):
                time.sleep(0.1)  # so that it is being captioned
                os.kill(process.pid, signal.SIGINT)
            status = process.wait(timeout=600)
        # the first line states what the captioner was trained on
        assert (status, process.stderr.read().splitlines()[1:]) == (code, messages)


@pytest.mark.slow
@pytest.mark.chromium
def test_dropped_images_show_their_captions_and_the_attention_of_their_words(
    server, browser, faults_of, scene, tmp_path
):
    other = shutil.copyfile(scene, tmp_path / "<img src=x onerror=alert(1)>.png")
    page = browser.new_page(viewport={"width": 360, "height": 800})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.url)
    page.set_input_files("#file", [scene, other])
    page.wait_for_selector("[aria-busy]", state="detached", timeout=600_000)
    assert page.locator(".card").count() == 2
    shown = page.locator(".large")
    words = shown.locator(".word").all_inner_texts()
    _, _, body = request(server, "POST", "/caption", scene.read_bytes())
    assert words == json.loads(body)["caption"].split()
    for side in ("original", "aligned"):
        shown.get_by_role("button", name=side).click()
        shown.locator(".word").first.click()
        assert f"“{words[0]}”" in shown.locator(".readout").inner_text()
        shown.locator(".word").first.click()  # which releases it
    with page.expect_download() as saved:
        shown.get_by_role("button", name="Save as JSON").click()
    saved_card = json.loads(Path(saved.value.path()).read_text())
    assert (saved_card["image"], saved_card["caption"]) == (scene.name, " ".join(words))
    with page.expect_download(timeout=600_000) as saved:
        shown.get_by_role("button", name="Save the figure").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    page.locator(".card:not(.large)").click()
    page.locator(".large .others", has_text=other.name).wait_for()
    for width in (360, 768, 1200, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"<script>"})
    page.wait_for_selector(".large:has-text('x.png is not in a supported format')", timeout=600_000)
    assert faults_of(page) == []
    page.close()
    assert complaints == []
