"""Paths and URLs of containers: brace patterns and the file systems of fsspec."""

import re
from typing import Any, BinaryIO, cast

from fsspec.core import url_to_fs

from a2cap.data.errors import A2Error, InputError, UnreadableError

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_ONE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?!/)")


def expand(pattern: str) -> list[str]:
    """Expand {000..127} and {a,b}: "s-{08..10}.tar" gives s-08.tar, s-09.tar and s-10.tar."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    first, last, words = found.groups()
    numbers = range(int(first or 0), int(last or 0) + 1)
    values = words.split(",") if words else [f"{number:0{len(first)}}" for number in numbers]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [text for value in values for text in expand(f"{before}{value}{after}")]


def as_url(text: str) -> str:
    """Return a path or URL as written; a Path has changed "s3://" to "s3:/"."""
    return _ONE_SLASH.sub(r"\1://", text)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it; InputError if there is none."""
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:  # each package, such as s3fs, is named by fsspec
        raise InputError(f"cannot open {url!r}: {error}; check the address") from error
    return system, path


def open_file(url: str) -> BinaryIO:
    """Open a file for reading; InputError if it is missing, UnreadableError if that fails."""
    system, path = file_system(url)
    try:
        return cast(BinaryIO, system.open(path, "rb"))
    except Exception as error:  # file systems raise types of their own
        raise access_error(url, error) from error


def version_of(url: str) -> str:
    """Return what distinguishes the versions of a file, as far as its file system states it."""
    system, path = file_system(url)
    return str(system.ukey(path))


def read_file(url: str) -> bytes | A2Error:
    """Return the bytes of a file, or the error for which it cannot be read."""
    try:
        with open_file(url) as file:
            return file.read()
    except A2Error as error:
        return error
    except Exception as error:
        return access_error(url, error)


def access_error(url: str, error: Exception) -> A2Error:
    """Return the error of a failed access: a missing file, else a failure of the system."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"no file {url!r}; check the path")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UnreadableError(f"cannot read {url!r}: {reason}; check the disk or the network")
