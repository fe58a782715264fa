"""User's cache folder: files kept between runs that can be computed again at any time.

An entry begins with the SHA-256 of its content; a damaged one counts as missing. A folder that
cannot be written costs time, not results.
"""

import logging
import os
import tempfile
from pathlib import Path

from a2cap.data.files.checksum import with_checksum, without_checksum

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return A2_CACHE, else `a2` in XDG_CACHE_HOME, else in ~/.cache; it may not exist."""
    if folder := os.environ.get("A2_CACHE"):
        return Path(folder).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "a2"


def read_entry(name: str) -> bytes | None:
    """Return the content of an entry, None if it is missing or damaged."""
    path = cache_folder() / name
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = without_checksum(stored)
    if content is None:
        logger.info("recomputing a damaged cache entry: %s", path)
    return content


def write_entry(name: str, content: bytes) -> None:
    """Replace an entry atomically."""
    write_file(name, with_checksum(content))


def write_file(name: str, content: bytes) -> None:
    """Replace a file atomically; unlike entries, it has no digest of its own."""
    path, temporary = cache_folder() / name, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # unique names, unlike `atomic.replacing`: several processes write here without a lock
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        logger.debug("cannot write cache file %s: %s", path, error)
