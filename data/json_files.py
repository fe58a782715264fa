"""JSON files in and out: read with or without gzip, written byte for byte the same every time."""

import gzip
import json
import zlib
from pathlib import Path
from typing import NoReturn

from a2.data.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"


def read_json(path: Path) -> object:
    """The value in a `.json` or `.json.gz` file; gzip is recognised by its first bytes.

    Raises InputError for a file that is missing, damaged, not UTF-8 or not JSON. NaN and Infinity,
    which Python would accept, are not JSON.
    """
    return parse_json(read_text(path), where=repr(str(path)))


def parse_json(text: str, *, where: str) -> object:
    """The value of one JSON text; `where` names it in the InputError of a text that is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _not_json(where, position) from error
    except (ValueError, RecursionError) as error:
        raise _not_json(where, str(error)) from error


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


def _decompress(content: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip file: {name} ({error}); copy it again") from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _not_json(where: str, position: str) -> InputError:
    return InputError(f"not JSON: {where} ({position}); mend the file or copy it again")
