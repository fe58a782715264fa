"""JSON files in and out: read with or without gzip, written byte for byte the same every time."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from a2cap.data.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(path: Path) -> object:
    """The value in a `.json` or `.json.gz` file; gzip is recognised by its first bytes.

    Raises InputError for a file that is missing, damaged, not UTF-8 or not JSON. NaN and Infinity,
    which Python would accept, are not JSON.
    """
    return parse_json(read_text(path), where=repr(str(path)))


def parse_json(text: str, *, where: str) -> object:
    """The value of one JSON text; `where` names it in the InputError of a text that is not JSON."""
    with _refusing(where):
        return json.loads(text, parse_constant=_refuse_constant)


def read_json_list(path: Path) -> Iterator[object]:
    """The values of a file that holds one JSON list, one after the other.

    For files of hundreds of MB: the text is held whole, the values one at a time. At 42 MiB of
    boxes that took twice the file in memory, `read_json` six times. Raises InputError as that does,
    and where there is no list; what is wrong further on comes after the values before it.
    """
    text, where = read_text(path), repr(str(path))
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    place = _after_space(text, 0)
    if text[place : place + 1] != "[":
        raise InputError(f"no JSON list: {where}; name the file that holds one")
    place = _after_space(text, place + 1)
    closed = text[place : place + 1] == "]"
    while not closed:
        with _refusing(where):
            value, place = decoder.raw_decode(text, place)
            place, closed = _after_value(text, place)
        yield value
    if _after_space(text, place + 1) != len(text):
        raise _not_json(where, "something follows the list")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, gzipped or not; raises InputError as `read_json` does."""
    name = repr(str(path))
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"no file {name}; check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {name} ({error.strerror}); check the path") from error
    if content.startswith(_GZIP_MAGIC):
        content = _decompress(content, name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text: {name} (byte {error.start:,}); save it as UTF-8"
        ) from error


def write_json(path: Path, value: object) -> None:
    """Write `value` as UTF-8 JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    try:
        yield
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _not_json(where, position) from error
    except (ValueError, RecursionError) as error:
        raise _not_json(where, str(error)) from error


def _after_space(text: str, place: int) -> int:
    found = _WHITE_SPACE.match(text, place)
    return found.end() if found else place


def _after_value(text: str, place: int) -> tuple[int, bool]:
    """Where the next value of a list begins, or its end is and True."""
    place = _after_space(text, place)
    if text[place : place + 1] == "]":
        return place, True
    if text[place : place + 1] != ",":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    return _after_space(text, place + 1), False


def _decompress(content: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip file: {name} ({error}); copy it again") from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _not_json(where: str, position: str) -> InputError:
    return InputError(f"not JSON: {where} ({position}); mend the file or copy it again")
