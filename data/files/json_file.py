"""JSON files: read with or without gzip, written byte for byte the same every time."""

import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from a2cap.data.errors import InputError
from a2cap.data.files.expansion import expansion_limit

_GZIP_MAGIC = b"\x1f\x8b"
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(path: Path) -> object:
    """Return the value of a `.json` or `.json.gz` file; gzip is recognised by its first bytes.

    Raises InputError if the file is missing, damaged, not UTF-8 or not JSON. NaN and Infinity,
    which Python would accept, are not JSON.
    """
    return parse_json(read_text(path), where=repr(str(path)))


def parse_json(
    text: str,
    *,
    where: str,
    convert: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> object:
    """Return the value of a JSON text, with `convert` applied to every object.

    Raises InputError for invalid JSON, which `where` names, and for a key that an object repeats:
    Python would keep the last of its values.
    """
    with _json_errors(where):
        return _decoder(convert).decode(text)


def parse_first(
    text: str,
    *,
    where: str,
    convert: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> tuple[Any, bool]:
    """Return the first value of a text as `parse_json` does, and True if more follows."""
    with _json_errors(where):
        value, end = _decoder(convert).raw_decode(text, _after_space(text, 0))
    return value, _after_space(text, end) != len(text)


def read_json_list(path: Path) -> Iterator[object]:
    """Yield the values of a file that contains one JSON list.

    Raises InputError as `read_json` does, and if there is no list. An error in the list is raised
    after the values before it.
    """
    return list_items(read_text(path), where=repr(str(path)))


def list_items(text: str, *, where: str) -> Iterator[object]:
    """Yield the values of the text of a JSON list; raises InputError as `read_json_list` does."""
    # For files of hundreds of MB: only the text is held whole. 42 MiB of boxes took twice the file
    # in memory; `read_json` took six times.
    decoder = _decoder()
    position = _after_space(text, 0)
    if text[position : position + 1] != "[":
        raise InputError(f"not a JSON list: {where}; name a file that contains one")
    position = _after_space(text, position + 1)
    closed = text[position : position + 1] == "]"
    while not closed:
        with _json_errors(where):
            value, position = decoder.raw_decode(text, position)
            end = _after_space(text, position)
            closed = text[end : end + 1] == "]"
            if not closed and text[end : end + 1] != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
        yield value
        position = end if closed else _after_space(text, end + 1)
    if _after_space(text, position + 1) != len(text):
        raise _not_json(where, "text after the list")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, gzipped or not; raises InputError as `read_json` does."""
    name = repr(str(path))
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"no file {name}; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {name} ({error.strerror}); check the path") from error
    try:
        if content.startswith(_GZIP_MAGIC):
            limit = expansion_limit(len(content))
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(limit + 1)
            if len(content) > limit:
                raise InputError(
                    f"{name} expands to more than {limit >> 20:,} MiB; unpack it yourself with "
                    "gunzip if it is what you expect, and name the result"
                )
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip file: {name} ({error}); copy it again") from error
    return decode_text(content, where=name)


def decode_text(content: bytes, *, where: str) -> str:
    """Return UTF-8 bytes as text; raise InputError for others, which `where` names."""
    try:
        return content.decode("utf-8-sig")  # Windows editors write a byte order mark
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text: {where} (byte {error.start:,}); save it as UTF-8"
        ) from error


def write_json(path: Path, value: object) -> None:
    """Write `value` as UTF-8 JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


class _RepeatedKeyError(ValueError):
    """Raised for an object that has a key twice."""


def _decoder(
    convert: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> json.JSONDecoder:
    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs):
            keys = Counter(key for key, _ in pairs)
            raise _RepeatedKeyError(keys.most_common(1)[0][0])
        return convert(value) if convert else value

    return json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=as_object)


@contextmanager
def _json_errors(where: str) -> Iterator[None]:
    try:
        yield
    except _RepeatedKeyError as error:
        raise InputError(f"{where} has the key {str(error)!r:.60} twice; keep one") from error
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _not_json(where, position) from error
    # integers of over 4,300 digits, nesting beyond the recursion limit, NaN
    except (ValueError, RecursionError) as error:
        raise _not_json(where, str(error)) from error


def _after_space(text: str, position: int) -> int:
    space = _WHITE_SPACE.match(text, position)
    return space.end() if space else position


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _not_json(where: str, problem: str) -> InputError:
    return InputError(f"not JSON: {where} ({problem}); fix the file or copy it again")
