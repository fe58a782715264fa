"""A web server on this machine, whose answers may have no end."""

import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(files, *, parts=True):
    """Serve files by path; /endless, /trickle, /500 and /403 are answers of other kinds.

    Yields the address, and the list of the requested paths. parts: answer requests for parts.
    """
    requested = []

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

        def do_GET(self):
            requested.append(self.path)
            with suppress(BrokenPipeError, ConnectionResetError):
                self._answer()

        def _answer(self):
            if self.path in ("/500", "/403"):
                self.send_error(int(self.path[1:]))
            elif self.path.startswith("/endless"):
                self._start(206 if "Range" in self.headers else 200)
                while True:
                    self.wfile.write(bytes(1 << 20))
            elif self.path.startswith("/trickle"):
                self._start(200)
                while True:
                    self.wfile.write(b".")
                    time.sleep(0.02)
            elif self.path not in files:
                self.send_error(404)
            else:
                self._file(files[self.path])

        def _file(self, content):
            part = self.headers.get("Range", "") if parts else ""
            if part:
                first, last = part.removeprefix("bytes=").split("-")
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                content = content[int(first) : int(last) + 1]
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _start(self, status):
            self.send_response(status)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()
