"""JSON files: read with or without gzip, written byte for byte the same every time."""

import codecs
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NoReturn

from a2cap.data.errors import InputError
from a2cap.data.files.expansion import expansion_limit
from a2cap.data.files.paths import did_you_mean

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1 << 18
"""Bytes that are read at a time."""
_LARGEST = 1 << 20
"""Characters of a list or object that is read whole; of a larger one, the first members are."""
_MOST_MEMBERS = 20
_MORE = "more than are read"
_LONGEST_WORD = 16
"""Characters of a JSON text that a block may end in, such as -Infinity and \\ud83d."""
_GOES_ON = frozenset(("", ".", "e", "E", "e+", "e-", "E+", "E-"))
"""What follows a number that may go on in the next block of a text."""
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(path: Path) -> object:
    """Return the value of a `.json` or `.json.gz` file; gzip is recognised by its first bytes.

    Raises InputError if the file is missing, damaged, not UTF-8 or not JSON. NaN and Infinity,
    which Python would accept, are not JSON.
    """
    return parse_json(read_text(path), where=repr(str(path)))


def parse_json(text: str, *, where: str) -> object:
    """Return the value of a JSON text.

    Raises InputError for invalid JSON, which `where` names, and for a key that an object repeats:
    Python would keep the last of its values.
    """
    with _json_errors(where):
        return _decoder().decode(text)


def read_json_list(path: Path) -> Iterator[object]:
    """Yield the values of a file that contains one JSON list, of which only a part is in memory.

    Raises InputError as `read_json` does, and if there is no list. An error in the list is raised
    after the values before it.
    """
    return list_items(text_blocks(path), where=repr(str(path)))


def list_items(blocks: Iterable[str], *, where: str) -> Iterator[object]:
    """Yield the values of a JSON list in blocks of text; raises as `read_json_list` does."""
    part = _Part(blocks)
    if part.character() != "[":
        raise InputError(f"not a JSON list: {where}; name a file that contains one")
    with _json_errors(where):
        for _ in part.members("]"):
            yield part.value()
    if part.character():
        raise _not_json(where, "text after the list")


class JsonObject:
    """The JSON object that blocks of text begin with, of which only a part is in memory.

    has_more: True if text follows, once the members are read.
    """

    def __init__(self, blocks: Iterable[str], *, where: str) -> None:
        self._part, self._where = _Part(blocks), where
        self.has_more = False

    def members(self) -> Iterator[tuple[str, int | None, object]]:
        """Yield each key with the items of its list and their places, or None and another value.

        An empty list is another value. A list or object of more than a million characters has its
        first members and one called "more than are read", as all of it would take ten times its
        text in memory. Raises InputError as `parse_json` does, but not for a key that this object
        repeats.
        """
        part = self._part
        part.character()
        with _json_errors(self._where):
            for _ in part.members("}"):
                key, place = part.key(), None
                if part.character() == "[":
                    for place, _ in enumerate(part.members("]")):
                        yield key, place, part.value()
                    if place is None:
                        yield key, None, []
                else:
                    yield key, None, part.value()
            self.has_more = part.character() != ""

    def repeated_key(self, key: str) -> InputError:
        """Return the error for a key that this object has twice."""
        return _repeated_key(self._where, key)


def require_whole(value: object) -> None:
    """Raise InputError for a list or object of which only the first members have been read."""
    if (isinstance(value, dict) and _MORE in value) or (
        isinstance(value, list) and value[-1:] == [{_MORE: None}]
    ):
        raise InputError(
            f"more than {_LARGEST:,} characters, of which only the first {_MOST_MEMBERS} "
            "captions or fields are read; shorten it"
        )


class _Part:
    """A part of a JSON text that comes in blocks; what was read is dropped."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks, self._decoder = iter(blocks), _decoder()
        self._text, self.position = "", 0
        self._line, self._column = 0, 0  # of the beginning of this part, from 0

    def character(self) -> str:
        """Move past white space, and return the character there, "" at the end of the text."""
        while (at := _after_space(self._text, self.position)) == len(self._text):
            if not self._grow():
                break
        self.position = at
        return self._text[at : at + 1]

    def members(self, closing: str) -> Iterator[None]:
        """Move to each member of the list or object at the position, then behind its end."""
        self.position += 1
        is_open = self.character() != closing
        while is_open:
            yield
            is_open = self.character() == ","
            if not is_open:
                self.require(closing, "',' delimiter")
            self.position += is_open
            self.character()
        self.position += 1

    def require(self, character: str, name: str) -> None:
        """Move past white space; raise JSONDecodeError unless this character is there."""
        if self.character() != character:
            raise self.error(f"Expecting {name}", self.position)

    def key(self) -> str:
        """Return the key of a member at the position, and move to its value."""
        self.require('"', "property name enclosed in double quotes")
        key = str(self.value())
        self.require(":", "':' delimiter")
        self.position += 1
        self.character()
        return key

    def value(self) -> object:
        """Return the value at the position, and move behind it; of a large one, `_outline`."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self.position)
            except json.JSONDecodeError as error:
                # a string that does not end, or a fault in the last characters, may go on
                is_inside = error.pos < len(self._text) - _LONGEST_WORD
                is_at_fault = is_inside and "Unterminated" not in error.msg
                opening = self._text[self.position : self.position + 1]
                is_large = opening in ("{", "[") and len(self._text) - self.position > _LARGEST
                if is_large and not is_at_fault:
                    return self._outline(opening)
                if is_at_fault or not self._grow():
                    raise self.error(error.msg, error.pos) from error
            else:
                if self._text[end : end + 3] not in _GOES_ON or not self._grow():
                    self.position = end
                    return value

    def _outline(self, opening: str) -> object:
        """Return the first members of a large list or object, with a mark; move behind it."""
        kept = list[tuple[str, object]]()
        for _ in self.members("}" if opening == "{" else "]"):
            item = self.key() if opening == "{" else "", self.value()
            if len(kept) <= _MOST_MEMBERS:
                kept.append(item if len(kept) < _MOST_MEMBERS else (_MORE, {_MORE: None}))
        return _as_object(kept) if opening == "{" else [value for _, value in kept]

    def error(self, problem: str, position: int) -> json.JSONDecodeError:
        """Return the error at a position of this part with its place in the whole text."""
        error = json.JSONDecodeError(problem, self._text, position)
        error.colno += self._column * (error.lineno == 1)
        error.lineno += self._line
        return error

    def _grow(self) -> bool:
        """Drop what was read and add as much as is left, at least a block; False at the end."""
        rest = self._text[self.position :]
        blocks = list(islice(self._blocks, 1 + len(rest) // _BLOCK))
        if not any(blocks):
            return False
        lines = self._text.count("\n", 0, self.position)
        begin = self._text.rfind("\n", 0, self.position) + 1
        self._column = self.position - begin + self._column * (lines == 0)
        self._line += lines
        self._text, self.position = "".join((rest, *blocks)), 0
        return True


def text_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of blocks of text, without their ends."""
    rest = ""
    # not splitlines(): it also splits at U+2028, which JSON strings may contain
    for block in blocks:
        rest += block
        if "\n" in block:
            *lines, rest = rest.split("\n")
            yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest.removesuffix("\r")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, gzipped or not; raises InputError as `read_json` does."""
    text = ""
    for block in text_blocks(path):
        text += block  # in place, while a join has the parts beside the whole
    return text


def text_blocks(path: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file, gzipped or not, in parts; raises as `read_json` does."""
    name = repr(str(path))
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # Windows editors write a mark first
    size = 0
    try:
        with path.open("rb") as packed:
            is_gzip = packed.peek(2).startswith(_GZIP_MAGIC)
            limit = expansion_limit(path.stat().st_size)
            file = gzip.GzipFile(fileobj=packed) if is_gzip else packed
            while content := file.read(_BLOCK):
                begin = size - len(decoder.getstate()[0])
                size += len(content)
                if is_gzip and size > limit:
                    raise InputError(
                        f"{name} expands to more than {limit >> 20:,} MiB; unpack it yourself with "
                        "gunzip if it is what you expect, and name the result"
                    )
                yield decoder.decode(content)
            begin = size - len(decoder.getstate()[0])
            yield decoder.decode(b"", final=True)
    except FileNotFoundError as error:
        raise InputError(f"no file {name}; check the path{did_you_mean(path)}") from error
    except UnicodeDecodeError as error:
        raise _not_utf8(name, begin + error.start) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip file: {name} ({error}); copy it again") from error
    except OSError as error:
        raise InputError(f"cannot read {name} ({error.strerror}); check the path") from error


def decode_text(content: bytes, *, where: str) -> str:
    """Return UTF-8 bytes as text; raise InputError for others, which `where` names."""
    try:
        return content.decode("utf-8-sig")  # Windows editors write a byte order mark
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error.start) from error


def write_json(path: Path, value: object) -> None:
    """Write `value` as UTF-8 JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


class _RepeatedKeyError(ValueError):
    """Raised for an object that has a key twice."""


def _as_object(pairs: list[tuple[str, object]]) -> object:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = Counter(key for key, _ in pairs)
        raise _RepeatedKeyError(keys.most_common(1)[0][0])
    return value


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_as_object)


def _repeated_key(where: str, key: str) -> InputError:
    return InputError(f"{where} has the key {key!r:.60} twice; keep one")


@contextmanager
def _json_errors(where: str) -> Iterator[None]:
    try:
        yield
    except _RepeatedKeyError as error:
        raise _repeated_key(where, str(error)) from error
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


def _not_utf8(where: str, position: int) -> InputError:
    return InputError(f"not UTF-8 text: {where} (byte {position:,}); save it as UTF-8")
