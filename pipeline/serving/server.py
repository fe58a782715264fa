"""A server for one person: the page, and the caption and attention of an image sent to it.

It listens on 127.0.0.1 only, opens no path that a request names, and answers no other web page.
Images that wait are on the disk.
"""

import json
import logging
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, TypeVar

from a2cap.data.errors import A2Error, ConfigError
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner
from a2cap.pipeline.report.html import load_template
from a2cap.pipeline.serving.caption_queue import Busy, CaptionQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

HOST = "127.0.0.1"
LARGEST = 50 * 2**20
"""Bytes of a request; a photograph of 100 megapixels is smaller."""
MOST_BYTES = 512 * 2**20
"""Bytes of all requests that are sent or wait, on the disk."""
MOST_CONNECTIONS = 256
UPLOAD_SECONDS = 60
"""For a request to arrive."""
HEADER_SECONDS = 10
"""For its headers, if others wait for a connection."""

# the page holds its own script and style, and nothing else may run or load
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'"
)


class _Refusal(Exception):
    """A request that is refused, and why; again: the seconds after which it may be sent again."""

    def __init__(self, status: HTTPStatus, message: str, *, again: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.again = status, message, again


class CaptionServer(ThreadingHTTPServer):
    """A server of one captioner, which the page calls `name`; port 0 takes any free port.

    Raises ConfigError for a captioner trained on given boxes, and where the port is taken.
    """

    # a daemon thread that frees tensors while the process exits would abort it
    daemon_threads = False
    timeout = 0.5  # seconds that `handle_request` waits for a connection
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, captioner: BatchCaptioner, *, name: str, port: int) -> None:
        if captioner.reads_boxes:
            raise ConfigError(
                "the captioner was trained on given boxes, which an image does not have; "
                "name one that was trained on detected boxes"
            )
        self.queue = CaptionQueue(captioner, name=name)
        self._connections: dict[socket.socket, float] = {}  # -> start, inf with headers
        self._counting = threading.Lock()
        self._bytes = 0
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port}: {error.strerror}; choose another --port"
            ) from error
        page = load_template("serve.html").render(name=name, about=captioner.about)
        self.page = page.encode()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or close it if there are too many."""
        if len(self._connections) >= MOST_CONNECTIONS:
            self._close_silent()
        if len(self._connections) < MOST_CONNECTIONS:
            self._connections[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def headers_arrived(self, request: Any) -> None:
        """Let a connection take its time: its request is known."""
        if request in self._connections:
            self._connections[request] = math.inf

    def _close_silent(self) -> None:
        """Close connections that have not sent their headers, so that others have a place."""
        latest = time.monotonic() - HEADER_SECONDS
        for connection, since in list(self._connections.items()):
            if since < latest:
                self._connections.pop(connection, None)
                with suppress(OSError):  # closed since
                    connection.shutdown(socket.SHUT_RDWR)  # its thread sees an end

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Answer the images that are being captioned, refuse those that wait, and end the rest."""
        self.queue.close()
        for connection in list(self._connections):
            with suppress(OSError):  # closed since
                connection.shutdown(socket.SHUT_RD)  # a thread that reads sees an end
        super().server_close()  # which waits for the threads

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error; a page that was closed early is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.exception("cannot answer a request")

    @contextmanager
    def reserved(self, length: int) -> Iterator[None]:
        """Count the bytes of a request until it is answered; Busy if there are too many."""
        with self._counting:
            if self._bytes + length > MOST_BYTES:
                raise Busy("too many images wait", again=UPLOAD_SECONDS)
            self._bytes += length
        try:
            yield
        finally:
            with self._counting:
                self._bytes -= length


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: CaptionServer
    server_version, sys_version = "a2", ""
    timeout = 60  # seconds without a byte, so that a stalled upload ends

    def do_GET(self) -> None:
        """Answer with the page."""
        self.server.headers_arrived(self.connection)
        if self._is_ours() and self.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._fail(_Refusal(HTTPStatus.NOT_FOUND, "no such page; open /"))

    def do_POST(self) -> None:
        """Answer with the captions of the image in the body, or the figure of its attention."""
        self.server.headers_arrived(self.connection)
        self._received, is_figure = 0, self.path == "/figure"
        try:
            with self._image() as file:
                found = self.server.queue.answer(file, as_figure=is_figure)
        except _Refusal as refusal:
            self._discard_body()
            self._fail(refusal)
        except (ConnectionError, TimeoutError):
            raise  # the page was closed
        except A2Error as error:
            self._fail(_Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)))
        except Busy as busy:
            self._discard_body()
            self._fail(_Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(busy), again=busy.again))
        except Exception:
            logger.exception("cannot caption an image")
            text = "cannot caption this image; the server's messages state why"
            self._fail(_Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text))
        else:
            self._answer(HTTPStatus.OK, found, "image/png" if is_figure else "application/json")

    def log_message(self, format: str, *arguments: object) -> None:
        """Log a request when details are asked for."""
        logger.debug(format, *arguments)

    def _is_ours(self) -> bool:
        # another name that resolves to this machine is an external page
        port = self.server.server_port
        return self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")

    def _is_of_our_page(self) -> bool:
        # browsers state which page sends a request; programs that are no browsers state nothing
        sites, origins = self.headers.get_all("Sec-Fetch-Site"), self.headers.get_all("Origin")
        own = [f"http://{self.headers.get('Host')}"]
        return sites in (None, ["same-origin"]) and origins in (None, own)

    @contextmanager
    def _image(self) -> Iterator[BinaryIO]:
        """Receive the image into a file; _Refusal where the request is not one of the page."""
        if not self._is_ours() or self.path not in ("/caption", "/figure"):
            raise _Refusal(HTTPStatus.NOT_FOUND, "no such page; send an image to /caption")
        if not self._is_of_our_page():
            raise _Refusal(HTTPStatus.FORBIDDEN, f"sent by another page; open {self.server.url}")
        length = self._length()
        if length is None:
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "no Content-Length; send it")
        if length > LARGEST:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the image has {length:,} bytes, the limit is {LARGEST:,}; scale it down",
            )
        with self.server.reserved(length), ExitStack() as opened:
            # without a name: a server that is killed leaves nothing
            file = self._on_disk(lambda: opened.enter_context(tempfile.TemporaryFile(buffering=0)))
            for chunk in self._chunks(length):
                self._on_disk(partial(file.write, chunk))
            yield file

    def _on_disk(self, work: Callable[[], T]) -> T:
        """Return the result of work on the disk; raise _Refusal if the disk fails or is full."""
        try:
            return work()
        except OSError as error:
            reason = error.strerror or str(error)
            logger.warning("cannot keep an image: %s", reason)
            raise _Refusal(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"the server's disk for temporary files fails: {reason}; free space there, or "
                "start the server with another TMPDIR",
            ) from error

    def _length(self) -> int | None:
        """Return the length of the body that the request states, None without a valid one."""
        stated = self.headers.get("Content-Length", "")
        return int(stated) if stated.isdecimal() and len(stated) < 16 else None

    def _chunks(self, length: int) -> Iterator[bytes]:
        """Yield the body in pieces; raise TimeoutError if it takes too long."""
        end = time.monotonic() + UPLOAD_SECONDS
        while length > 0 and (chunk := self.rfile.read1(min(length, 1 << 16))):
            length -= len(chunk)
            self._received += len(chunk)  # before the disk, on which the caller writes it, may fail
            yield chunk
            if time.monotonic() > end:
                raise TimeoutError

    def _discard_body(self) -> None:
        # a client that is still sending would see a broken connection in place of the answer
        for _ in self._chunks(min(self._length() or 0, 2 * LARGEST) - self._received):
            pass

    def _fail(self, refusal: _Refusal) -> None:
        # what was not read would be taken for the next request
        self.close_connection = True
        content = json.dumps({"error": refusal.message}).encode()
        self._answer(refusal.status, content, "application/json", again=refusal.again)

    def _answer(
        self, status: HTTPStatus, content: bytes, kind: str, *, again: int | None = None
    ) -> None:
        self.send_response(status)
        if again is not None:
            self.send_header("Retry-After", str(again))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)
