"""Files behind http and https, of which no server can make a2 read more than it asked for."""

import time
from functools import cached_property
from typing import Any

import requests
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from a2cap.data.errors import InputError

_TIMEOUT = 30.0
"""Seconds without a byte after which a connection fails."""
_DEADLINE = 300.0
"""Seconds for one answer: a server may send a byte at a time."""
_BLOCK = 1 << 18
_LARGEST_PART = 1 << 30


class HttpFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Single files of web servers, in whole or in parts.

    fsspec's own reads answers to their end, however long they are.
    """

    protocol = ("http", "https")

    @cached_property
    def _session(self) -> requests.Session:
        return requests.Session()  # fsspec makes one HttpFiles per thread

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def content(self, url: str, *, limit: int) -> bytes:
        """Return a whole file; raise InputError if it has more than `limit` bytes."""
        with self._answer(url) as response:
            content = _first_bytes(response, limit + 1)
        if len(content) > limit:
            raise InputError(f"{url!r} has more than {limit >> 20} MiB; make it smaller")
        return content

    def info(self, path: str, **_options: object) -> dict[str, Any]:
        """Return the size and version that the server states."""
        with self._answer(path, "bytes=0-0") as response:
            headers = response.headers
            stated = headers.get("Content-Range", "").rpartition("/")[2]
            size = stated if response.status_code == 206 else headers.get("Content-Length", "")
            return {
                "name": path,
                "type": "file",
                "size": int(size) if size.isdecimal() and len(size) < 16 else None,
                "version": [headers.get(name) for name in ("ETag", "Last-Modified")],
            }

    def exists(self, path: str, **_options: object) -> bool:
        """Return True if the server has the file; raise OSError for other answers than that."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_options: object) -> list[Any]:
        """Raise InputError: web servers have no folders."""
        raise InputError(f"cannot list {path!r}: web servers list no files; name each, as {{0..9}}")

    def part(self, url: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, which is excluded."""
        if end - start > _LARGEST_PART:  # of a damaged tar or Parquet file
            raise InputError(f"{url!r} claims {end - start:,} bytes in one part; download the file")
        with self._answer(url, f"bytes={start}-{end - 1}") as response:
            if start and response.status_code != 206:
                raise InputError(f"the server of {url!r} sends no parts; download the file")
            content = _first_bytes(response, end - start)
        if len(content) != end - start:
            raise OSError(f"{len(content):,} of {end - start:,} bytes came")
        return content

    def _open(self, path: str, mode: str = "rb", **_options: object) -> "_HttpFile":
        size = self.info(path)["size"]
        if size is None:
            raise InputError(f"the server of {path!r} states no size; download the file")
        return _HttpFile(self, path, mode, size=size)

    def _answer(self, url: str, part: str | None = None) -> requests.Response:
        headers = {"Accept-Encoding": "identity"} | ({"Range": part} if part else {})
        try:
            response = self._session.get(url, stream=True, timeout=_TIMEOUT, headers=headers)
        except (ValueError, requests.TooManyRedirects) as error:  # such as a URL without a host
            raise InputError(f"cannot open {url!r}: {error}; check the address") from error
        except requests.RequestException as error:
            raise OSError(str(innermost(error))) from error
        if response.ok:
            return response
        response.close()
        if response.status_code in (404, 410):
            raise FileNotFoundError(url)
        answer = f"HTTP {response.status_code} {response.reason}"
        if is_final(response.status_code):
            raise InputError(f"cannot open {url!r}: {answer}; check the address")
        raise OSError(answer)


class _HttpFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.part(self.path, start, end)
        return content


def is_final(status: int) -> bool:
    """Return True for an error of a server that another try cannot change."""
    return status < 500 and status not in (408, 429)


def innermost(error: BaseException) -> BaseException:
    """Return the error that the others were raised from, which names the cause in brief."""
    return error if error.__context__ is None else innermost(error.__context__)


def _first_bytes(response: requests.Response, limit: int) -> bytes:
    """Return at most `limit` bytes of an answer."""
    end = time.monotonic() + _DEADLINE
    content = bytearray()
    # read1 returns what has come, so that the deadline counts between trickles
    while block := response.raw.read1(min(_BLOCK, limit - len(content))):
        content += block
        if time.monotonic() > end:
            raise OSError(f"no end after {_DEADLINE:.0f} seconds")
    return bytes(content)
