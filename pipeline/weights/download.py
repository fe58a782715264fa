"""Downloads over HTTP by pooch, which stores a file under its name only when it is complete."""

import logging
import time
from pathlib import Path

import pooch
import requests

from a2cap.data.errors import A2Error
from a2cap.data.sources.http import innermost, is_final
from a2cap.pipeline.engine.progress import track

logger = logging.getLogger(__name__)

LIMIT = 4_000_000_000  # bytes; a server may send without end
_BLOCK = 1 << 18
_TRIES = 5
_TIMEOUT = 30.0
"""Seconds without a byte after which a connection fails."""


class DownloadError(A2Error):
    """A file that cannot be downloaded, or that is not the expected one."""


def download(url: str, target: Path, *, pause: float = 1.0) -> None:
    """Download a file to `target`, unless it exists.

    pause: seconds before the second try, doubled for each further one. An HTTP error that another
    try cannot change (such as 404) ends the download at once. Raises DownloadError.
    """
    if target.is_file():
        return
    pooch.get_logger().setLevel(logging.WARNING)  # it would print the sha256 of every download
    for count in range(1, _TRIES + 1):
        try:
            pooch.retrieve(
                url, known_hash=None, fname=target.name, path=target.parent, downloader=_stream
            )
            return
        except requests.RequestException as error:  # a full disk is no failure of the network
            reason = _reason(error)
            if error.response is not None and is_final(error.response.status_code):
                raise DownloadError(
                    f"cannot download {url}: {reason}; name a folder that contains it instead"
                ) from error
        logger.info("%s: try %d of %d: %s", target.name, count, _TRIES, reason)
        if count < _TRIES:
            time.sleep(pause * 2 ** (count - 1))
    raise DownloadError(
        f"cannot download {url}: {reason}; check the network, or name a folder that contains it"
    )


def _stream(url: str, target: str, _pooch: object) -> None:
    """Write the content of `url` to the temporary file `target` of pooch."""
    # pooch's own HTTPDownloader leaves the connection of a failed download open
    with requests.get(url, stream=True, timeout=_TIMEOUT) as response, Path(target).open("wb") as f:
        response.raise_for_status()
        steps = [url, *(step.url for step in response.history), response.url]
        if url.startswith("https:") and not all(step.startswith("https:") for step in steps):
            raise DownloadError(
                f"cannot download {url}: it leads to {response.url}, a connection that anyone on "
                "its way can change; get the file elsewhere"
            )
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() and len(length) < 20 else 0  # else unknown
        with track(url.rpartition("/")[2].partition("?")[0], total=total) as progress:
            for block in () if total > LIMIT else response.iter_content(_BLOCK):
                f.write(block)
                progress.advance(len(block))
                if f.tell() > LIMIT:
                    break
        if max(total, f.tell()) > LIMIT:
            raise DownloadError(
                f"cannot download {url}: it has more than {LIMIT / 1e9:.0f} GB, which no known "
                "file has; get the file elsewhere"
            )


def _reason(error: requests.RequestException) -> str:
    """Return the status of the server, or the innermost error."""
    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    cause = innermost(error)
    return str(cause) or type(cause).__name__
