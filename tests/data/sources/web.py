"""A web server on this machine, whose answers may be errors, cut off or without end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Host(ThreadingHTTPServer):
    """A server that answers a path by its entry in `files`, others with 404.

    files: path -> bytes, an HTTP error code, "drop" (half of an answer), a function that yields
    bytes without end, or a list of these, one per request, the last one for good. length:
    Content-Length in place of the true one. parts: answer requests for parts.
    """

    daemon_threads = True

    def __init__(self, files, *, parts=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files, self.parts, self.length, self.requested = files, parts, None, []


class Handler(BaseHTTPRequestHandler):
    server: Host

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requested.append(self.path)
        answer = self.server.files.get(self.path, 404)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        part = self.headers.get("Range") if self.server.parts else None
        with suppress(BrokenPipeError, ConnectionResetError):
            if isinstance(answer, int):
                self.send_error(answer)
            elif callable(answer):
                self._send(answer(), 206 if part else 200)
            elif answer == "drop":
                self._send([b"01234"], length=10)
            elif part:
                first, last = map(int, part.removeprefix("bytes=").split("-"))
                content, whole = answer[first : last + 1], len(answer)
                self._send([content], 206, range_=f"bytes {first}-{last}/{whole}")
            else:
                self._send([answer])

    def _send(self, blocks, status=200, *, length=None, range_=None):
        self.send_response(status)
        if isinstance(blocks, list):
            length = self.server.length or length or len(blocks[0])
            self.send_header("Content-Length", str(length))
        if range_:
            self.send_header("Content-Range", range_)
        self.end_headers()
        for block in blocks:
            self.wfile.write(block)


@contextmanager
def serving(files, **options) -> Iterator[Host]:
    """Serve files by path, as `Host` has them."""
    with Host(files, **options) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
