"""Files of sources, on this machine or behind a URL, and brace patterns that name many.

A name may come from a list that anyone wrote, and fsspec would follow it anywhere: it chains
"a::b", and some of its file systems run code. Only plain URLs of a few protocols reach it; local
files are opened without it.
"""

import errno
import glob
import os
import re
from typing import Any, BinaryIO, cast

from a2cap.data.errors import A2Error, InputError, UnreadableError
from a2cap.data.files.system import open_regular

PROTOCOLS = ("http", "https", "s3", "gs", "hf")
LARGEST_FILE = 1 << 28
"""Bytes of an image or list that are read at most."""

_BRACES = re.compile(r"\{(?:(\d{1,15})\.\.(\d{1,15})|([^{}]*,[^{}]*))\}")
_MOST_NAMES = 100_000
_ONE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?!/)", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_BLOCK = 1 << 20
_OF_THE_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES)
"""Errors that a name causes, not the disk."""


def expand(pattern: str) -> list[str]:
    """Expand {000..127} and {a,b}: "s-{08..10}.tar" gives s-08.tar, s-09.tar and s-10.tar.

    Raises InputError for more than 100,000 names.
    """
    names: list[str] = []
    texts, left = [pattern], _MOST_NAMES
    while texts:
        text = texts.pop()
        braces = _BRACES.search(text)
        if braces is None:
            names.append(text)
            continue
        first, last, words = braces.groups()
        count = words.count(",") + 1 if words else int(last) - int(first) + 1
        left -= count
        if left < 0:
            raise InputError(
                f"{pattern!r} names more than {_MOST_NAMES:,} files; name fewer at once"
            )
        values = words.split(",") if words else _numbers(first, count)
        before, after = text[: braces.start()], text[braces.end() :]
        texts += [f"{before}{value}{after}" for value in reversed(values)]
    return names


def _numbers(first: str, count: int) -> list[str]:
    return [f"{int(first) + number:0{len(first)}}" for number in range(count)]


def as_url(text: str) -> str:
    """Return a path or URL as written; a Path has changed "s3://" to "s3:/"."""
    text = re.sub(r"^file:/+", "/", text)
    return _ONE_SLASH.sub(r"\1://", text)


def is_url(name: str) -> bool:
    """Return True for a URL, False for a path of this machine."""
    return "://" in name


def require_local(name: str) -> None:
    """Raise InputError for an address where a file of this machine is due."""
    address = as_url(name)
    if _ADDRESS.match(address) and not os.path.exists(name):  # noqa: PTH110  (any name)
        raise InputError(f"{address!r} is a web address; download the image first")


def require_permitted(url: str) -> None:
    """Raise InputError for a URL of another protocol, or a chain of URLs."""
    if "::" in url:
        raise InputError(f"cannot open {url!r}: '::' chains addresses; name one address")
    if url.partition("://")[0] not in PROTOCOLS:
        raise InputError(
            f"cannot open {url!r}: its protocol is not one of {', '.join(PROTOCOLS)}; "
            "check the address"
        )


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; InputError if it is not permitted."""
    require_permitted(url)
    protocol = url.partition("://")[0]
    import fsspec

    from a2cap.data.sources.http import HttpFiles

    if protocol in HttpFiles.protocol:
        return HttpFiles(), url
    try:
        system = fsspec.filesystem(protocol)
    except (ImportError, ValueError) as error:  # each package, such as s3fs, is named by fsspec
        raise InputError(f"cannot open {url!r}: {error}; check the address") from error
    return system, system._strip_protocol(url)


def matching(pattern: str) -> list[str]:
    """Return the names that a pattern with `*` matches, sorted."""
    if "*" not in pattern:
        return [pattern]
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  (keeps relative names)
    system, path = file_system(pattern)
    return [system.unstrip_protocol(name) for name in sorted(system.glob(path))]


def exists(name: str) -> bool:
    """Return True if there is a file or folder of this name; raise A2Error if that is unknown."""
    if not is_url(name):
        return os.path.exists(name)  # noqa: PTH110  (False for impossible names)
    system, path = file_system(name)
    try:
        return bool(system.exists(path))
    except Exception as error:  # no permission, no network
        raise access_error(name, error) from error


def is_folder(name: str) -> bool:
    """Return True for a folder behind a URL."""
    if not is_url(name):
        return False
    system, path = file_system(name)
    return bool(system.isdir(path))


def open_file(name: str) -> BinaryIO:
    """Open a file for reading; InputError if it is missing, UnreadableError if that fails."""
    try:
        if not is_url(name):
            return open_regular(name)
        system, path = file_system(name)
        return cast(BinaryIO, system.open(path, "rb"))
    except A2Error:
        raise
    except Exception as error:  # file systems raise types of their own
        raise access_error(name, error) from error


def version_of(name: str) -> str:
    """Return the size of a local file; of a URL, what its file system states of its version."""
    if not is_url(name):
        return str(os.path.getsize(name)) if os.path.isfile(name) else ""  # noqa: PTH113, PTH202
    system, path = file_system(name)
    return str(system.ukey(path))


def read_file(name: str) -> bytes | A2Error:
    """Return the bytes of a file, or the error for which it cannot be read."""
    try:
        if is_url(name):
            system, path = file_system(name)
            if name.startswith(("http:", "https:")):
                return bytes(system.content(path, limit=LARGEST_FILE))
        with open_file(name) as file:
            return _bounded(file, name)
    except A2Error as error:
        return error
    except Exception as error:
        return access_error(name, error)


def _bounded(file: BinaryIO, name: str) -> bytes:
    """Return the bytes of a file; InputError if there are more than the limit."""
    content = bytearray()
    while block := file.read(_BLOCK):
        content += block
        if len(content) > LARGEST_FILE:
            raise too_large(name)
    return bytes(content)


def too_large(name: str) -> InputError:
    """Return the error of a file or member beyond the limit."""
    return InputError(f"{name!r} has more than {LARGEST_FILE >> 20} MiB; make it smaller")


def access_error(url: str, error: Exception) -> A2Error:
    """Return the error of a failed access: a missing file, else a failure of the system."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"no file {url!r}; check the path")
    if isinstance(error, OSError) and error.errno in _OF_THE_NAME:
        return InputError(f"no file {url!r}: {error.strerror}; check the path")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UnreadableError(f"cannot read {url!r}: {reason}; check the disk or the network")
