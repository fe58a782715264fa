"""What is kept between runs outside the artifacts: things that can be made again at any time.

An entry is written under a temporary name and renamed, and begins with the sha256 of what follows:
one that is damaged is as good as none. A folder that cannot be written costs time, not results.
"""

import hashlib
import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_HEAD = 65
"""Bytes of the digest in hex and the line break after it."""


def cache_folder() -> Path:
    """A2_CACHE, else `a2` in XDG_CACHE_HOME, else in ~/.cache; it need not exist."""
    if named := os.environ.get("A2_CACHE"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "a2"


def read_entry(name: str) -> bytes | None:
    """The content of an entry, or None where there is none or it is damaged."""
    path = cache_folder() / name
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[_HEAD:]
    if stored[:_HEAD] == _head(content):
        return content
    logger.info("cache entry is damaged and made again: %s", path)
    return None


def write_entry(name: str, content: bytes) -> None:
    """Replace an entry, so that every reader finds the old one or the new, whole."""
    path = cache_folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(_head(content) + content)
        Path(file.name).replace(path)
    except OSError as error:
        logger.debug("cannot keep %s: %s", path, error)


def _head(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"
