"""Downloads over HTTP that take up where they stopped, and never leave half a file by its name."""

import http.client
import logging
import time
import urllib.error
import urllib.request
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.progress import track

logger = logging.getLogger(__name__)

_BLOCK = 1 << 18
_TRIES = 5
_TIMEOUT = 30.0
"""Seconds without a byte after which a server counts as gone."""


class DownloadError(A2Error):
    """A file cannot be fetched, or what came is not the file that was meant."""


class _CutOffError(Exception):
    """The connection ended early; what has come is kept, and the rest is asked for."""


def download(url: str, target: Path, *, pause: float = 1.0) -> None:
    """Fetch a file, unless it is there; `target` appears only when all of it has come.

    What an earlier try or run got is kept as `.partial` and continued where the server can do that.
    pause: seconds before the second try, doubled for each further one. Raises DownloadError.
    """
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    for count in range(1, _TRIES + 1):
        try:
            _continue(url, partial)
            partial.replace(target)
            return
        except (_CutOffError, http.client.HTTPException, OSError) as error:
            reason = _reason(url, error)
            logger.info("%s: try %d of %d: %s", target.name, count, _TRIES, reason)
        if count < _TRIES:
            time.sleep(pause * 2 ** (count - 1))
    raise DownloadError(
        f"cannot fetch {url}: {reason}; check the network, or name a folder that holds it"
    )


def _reason(url: str, error: Exception) -> str:
    """Why a try failed; DownloadError where another one cannot help."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code < 500 and error.code not in (408, 429):
            raise DownloadError(
                f"cannot fetch {url}: HTTP {error.code} {error.reason}; "
                "name a folder that holds it instead"
            ) from error
        return f"HTTP {error.code} {error.reason}"
    return str(error) or type(error).__name__


def _continue(url: str, partial: Path) -> None:
    """Adds to `partial` what is missing; _CutOffError where the answer ends too early."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # all of it has come before
        partial.unlink()
        raise _CutOffError("what an earlier try got is not of this file") from error
    with answer:
        start = have if _begins_at(answer, have) else 0
        length = answer.headers.get("Content-Length")
        expected = None if length is None else start + int(length)
        with partial.open("ab" if start else "wb") as file:
            file.truncate(start)
            with track(partial.stem, total=expected or 0, done=start) as progress:
                while block := answer.read(_BLOCK):
                    file.write(block)
                    progress.advance(len(block))
            came = file.tell()
    if expected is not None and came != expected:
        raise _CutOffError(f"the answer ended after {came:,} of {expected:,} bytes")


def _begins_at(answer: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer is the rest that was asked for, and not the whole file."""
    said = answer.headers.get("Content-Range", "")
    return bool(have) and answer.status == 206 and said.startswith(f"bytes {have}-")
