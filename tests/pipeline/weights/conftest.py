"""A local web server for the tests of downloads."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Host(ThreadingHTTPServer):
    """A server that answers a path by its entry in `files`.

    files: path -> bytes, an HTTP error code, "drop" (half of an answer), or a list of these, one
    per request, the last one for good. length: Content-Length in place of the true one.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {}
        self.length = None
        self.requested = []


class Handler(BaseHTTPRequestHandler):
    server: Host

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requested.append(self.path)
        answer = self.server.files.get(self.path, 404)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, int):
            self.send_error(answer)
            return
        length, body = (10, b"01234") if answer == "drop" else (len(answer), answer)
        self.send_response(200)
        self.send_header("Content-Length", self.server.length or str(length))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def host():
    with Host() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
