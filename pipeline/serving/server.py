"""A server for one person: the page, and the caption and attention of an image sent to it.

It listens on 127.0.0.1 only, opens no path that a request names, and answers no other web page.
Images that wait are on the disk. The page sends the file itself, so that no form is parsed.
"""

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
    from uvicorn import Config, Server
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    from a2cap.data.errors import ConfigError

    raise ConfigError('a2 serve needs uvicorn; run pip install "a2cap[serve]"') from error

from a2cap.data.errors import A2Error, ConfigError
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner
from a2cap.pipeline.report.html import load_template
from a2cap.pipeline.serving.caption_queue import Busy, CaptionQueue

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
LARGEST = 50 * 2**20
"""Bytes of a request; a photograph of 100 megapixels is smaller."""
MOST_BYTES = 512 * 2**20
"""Bytes of all requests that are sent or wait, on the disk."""
MOST_CONNECTIONS = 256
UPLOAD_SECONDS = 60
"""For a request to arrive."""
HEADER_SECONDS = 10

_HEADERS = [
    ("Connection", "close"),  # so that each connection has one request, and one time limit
    # the page holds its own script and style, and nothing else may run or load
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src blob: data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
]


class _Connection(H11Protocol):
    """A connection of one request.

    uvicorn bounds neither the time of headers nor the number of connections: `limit_concurrency`
    refuses every request as long as others say nothing.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that waits longest for its client if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self.loop.call_later(HEADER_SECONDS, self._end_silence)
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [c for c in self.connections if isinstance(c, _Connection) and c.is_waiting]
            longest = min(waiting, key=lambda connection: connection.since)
            self.connections.discard(longest)  # before more connections of this moment are counted
            longest.transport.abort()

    @property
    def is_waiting(self) -> bool:
        """True while the client sends its request or takes the answer."""
        cycle = self.cycle
        return cycle is None or cycle.more_body or cycle.response_complete

    def _end_silence(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class CaptionServer(Server):
    """A server of one captioner, which the page calls `name`; port 0 takes any free port.

    `run(sockets=[server.socket])` serves until Ctrl-C. Raises ConfigError for a captioner trained
    on given boxes, and where the port is taken.
    """

    def __init__(self, captioner: BatchCaptioner, *, name: str, port: int) -> None:
        if captioner.reads_boxes:
            raise ConfigError(
                "the captioner was trained on given boxes, which an image does not have; "
                "name one that was trained on detected boxes"
            )
        try:
            self.socket = socket.create_server((HOST, port))
        except OSError as error:
            reason = os.strerror(error.errno or 0)  # Python's own repeats the address
            raise ConfigError(
                f"cannot listen on port {port}: {reason}; choose another --port"
            ) from error
        self.port = self.socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self.bytes = 0  # of all requests that are sent or wait
        self.queue = CaptionQueue(captioner, name=name)
        page = load_template("serve.html").render(name=name, about=captioner.about)
        routes = [
            Route("/", HTMLResponse(page), methods=["GET"]),
            Route("/{path:path}", self._caption, methods=["POST"]),
        ]
        # another name that resolves to this machine is an external page
        hosts = Middleware(TrustedHostMiddleware, [HOST, "localhost"], www_redirect=False)
        missing = dict.fromkeys((404, 405), _no_page)
        settings = Config(
            Starlette(routes=routes, middleware=[hosts], exception_handlers=missing),
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            headers=_HEADERS,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            log_level="critical",  # of all that is not logged here
            timeout_graceful_shutdown=1,  # after the queue ended
        )
        super().__init__(settings)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the images that are being captioned, refuse those that wait, and end the rest."""
        self.queue.close()
        while self.queue.is_working:  # also after a second Ctrl-C: its end would abort the process
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)

    async def _caption(self, request: Request) -> Response:
        """Answer with the captions of the image in the body, or the figure of its attention."""
        body, is_figure = request.stream(), request.scope["path"] == "/figure"
        try:
            with self._reserved(self._length(request)), await _save(body) as file:
                answer = await asyncio.wrap_future(self.queue.submit(file, as_figure=is_figure))
            return Response(answer, media_type="image/png" if is_figure else "application/json")
        except asyncio.CancelledError:
            return _refusal(Busy("the server stops"))
        except ClientDisconnect:
            return Response()  # to nobody
        except Exception as error:
            refusal = _refusal(error)
            if refusal.status_code != 411:  # whose body may have no end
                await _discard(body)
            return refusal

    def _length(self, request: Request) -> int:
        """Return the length of the image; raise HTTPException if the page did not send it."""
        headers = request.headers
        if "Content-Length" not in headers or "Transfer-Encoding" in headers:
            raise HTTPException(411, "no Content-Length; send it")
        if request.scope["path"] not in ("/caption", "/figure"):
            raise HTTPException(404, "no such page; send an image to /caption")
        # browsers state which page sends a request; programs that are no browsers state nothing
        sites, origins = headers.getlist("Sec-Fetch-Site"), headers.getlist("Origin")
        if sites not in ([], ["same-origin"]) or origins not in ([], [f"http://{headers['Host']}"]):
            raise HTTPException(403, f"sent by another page; open {self.url}")
        length = int(headers["Content-Length"])  # h11 refuses what is not a number
        if length > LARGEST:  # Starlette's `max_body_size` would not say why
            message = f"the image has {length:,} bytes, the limit is {LARGEST:,}; scale it down"
            raise HTTPException(413, message)
        return length

    @contextmanager
    def _reserved(self, length: int) -> Iterator[None]:
        """Count the bytes of a request until it is answered; Busy if there are too many."""
        if self.bytes + length > MOST_BYTES:
            raise Busy("too many images wait", again=UPLOAD_SECONDS)
        self.bytes += length
        try:
            yield
        finally:
            self.bytes -= length


async def _save(body: AsyncIterator[bytes]) -> BinaryIO:
    """Return a file of the body, which uvicorn gives all the time that it takes."""
    try:
        with ExitStack() as failing:
            # without a name: a server that is killed leaves nothing
            file = failing.enter_context(tempfile.TemporaryFile())
            async with asyncio.timeout(UPLOAD_SECONDS):
                async for chunk in body:
                    await asyncio.to_thread(file.write, chunk)
            file.flush()
            failing.pop_all()
            return file
    except TimeoutError as error:
        raise HTTPException(408, f"not sent within {UPLOAD_SECONDS} s; send it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        logger.warning("cannot keep an image: %s", reason)
        message = f"the server's disk for temporary files fails: {reason}; free space there, or "
        raise HTTPException(507, f"{message}start the server with another TMPDIR") from error


async def _discard(body: AsyncIterator[bytes]) -> None:
    # a client that is still sending would see a broken connection in place of the answer
    left = 2 * LARGEST
    with suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in body:
                left -= len(chunk)
                if left < 0:
                    return


def _refusal(error: Exception) -> Response:
    """Return the answer that states an error and, if the image may be sent again, when."""
    status, message, headers = 500, str(error), {}
    match error:
        case HTTPException():
            status, message = error.status_code, error.detail
        case A2Error():
            status = 422
        case Busy():
            status = 503
            headers = {"Retry-After": str(error.again)} if error.again is not None else {}
        case _:
            logger.error("cannot caption an image", exc_info=error)
            message = "cannot caption this image; the server's messages state why"
    return JSONResponse({"error": message}, status, headers)


async def _no_page(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "no such page; open /"}, 404)
