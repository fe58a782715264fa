"""Tab-separated region features, one line of base64 per image, mostly without a header line.

Published files often contain broken lines: each is skipped with its reason, and what is whole of a
line that was joined with the next one is read.
"""

import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from functools import partial
from gzip import BadGzipFile
from typing import BinaryIO
from zipfile import BadZipFile

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import Arrays, as_text
from a2cap.data.features.formats.feature_source import Container, Entry, damaged
from a2cap.data.features.formats.layouts import ID_NAMES, LAYOUTS, layout_of

_CLEAR_ID = re.compile(rb"(?:.*=|[A-Za-z0-9+/]*?)((?<==)\d+|COCO_[a-z]+\d{4}_\d{12})")
"""The end of a torn base64 text and the id after it. Digits may belong to either of them, unless
padding ends the text."""


def tsv_container(open_file: Callable[[], BinaryIO], name: str, limit: int) -> Container:
    """Return the lines of a file; raise InputError if its columns are unknown.

    open_file: opens it from the start, so that packed files are read alike; limit: bytes of a line.
    """
    title = f"{name!r} (TSV)"

    def lines() -> Iterator[bytes]:
        try:
            with open_file() as file:
                for line in iter(partial(file.readline, limit), b""):
                    yield line.rstrip(b"\r\n").removeprefix(BOM_UTF8)
        except (EOFError, BadGzipFile, BadZipFile, zlib.error) as error:
            raise damaged(title, error) from error

    first = next(lines(), b"").split(b"\t")
    names = [as_text(value[:99].decode(errors="replace")) for value in first]
    has_header = layout_of(names) is not None
    by_count = {len(x.columns): x for x in LAYOUTS if x.columns}
    if not has_header and len(names) not in by_count:
        counts = ", ".join(f"{count} ({layout.name})" for count, layout in by_count.items())
        kind = "a file of an unknown kind" if names[0] else "empty"
        problem = f"first line of {name!r} has {len(names)} columns"
        if len(names) == 1:
            problem = f"{name!r} is {kind}, or a TSV of 1 column"
        raise InputError(
            f"{problem}, not {counts}; name a file of one of them, or add a first line with the "
            "names of the columns"
        )
    columns = tuple(names) if has_header else by_count[len(names)].columns
    if not {*ID_NAMES} & {*columns}:
        raise InputError(
            f"{name!r} has no column of ids: its first line is {', '.join(names)}; call the column "
            "image_id"
        )

    def entries() -> Iterator[Entry]:
        reader = _Lines(columns)
        for number, line in enumerate(lines(), start=1):
            if number > has_header:
                yield from reader.entries(line.split(b"\t"), f"line {number}")

    return Container(title, entries, lambda: sum(1 for _ in lines()) - has_header)


class _Lines:
    """The lines of a file with these columns."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._id_column = next(number for number, name in enumerate(columns) if name in ID_NAMES)
        self._length = 0  # of the last column, in the latest whole line

    def entries(self, values: list[bytes], position: str) -> Iterator[Entry]:
        """Yield the image of a line, or those of a line in which a torn one was continued."""
        count = len(self._columns)
        if len(values) == count:
            self._length = len(values[-1])
            arrays = dict(zip(self._columns, values, strict=True))
            yield Entry(self._name(values), lambda: arrays, position)
            return
        problem = f"{len(values)} of {count} columns"
        if not count < len(values) < 2 * count or self._id_column:
            yield Entry("", partial(_fail, problem), position)
            return
        # the last columns are a whole line, the first of them continues the torn one
        start = len(values) - count
        torn, whole = values[:start], values[start:]
        joined, end = whole[0], self._length
        if start == count - 1 and 0 < end < len(joined) and joined[end:].isascii():
            yield from self.entries([*torn, joined[:end]], position)
            yield from self.entries([joined[end:], *whole[1:]], position)
            return
        problem += ": a torn line joined with the next"
        yield Entry(self._name(torn), partial(_fail, problem), position)
        if clear := _CLEAR_ID.fullmatch(joined):
            yield from self.entries([clear[1], *whole[1:]], position)
        else:
            end_of_line = (
                f"the id of the line joined with a torn one cannot be told from {joined[-20:]!r}"
            )
            yield Entry("", partial(_fail, end_of_line), position)

    def _name(self, values: list[bytes]) -> str:
        """Return the name of a line's image, damaged or not; an empty one if there is none."""
        try:
            return as_text(values[self._id_column])
        except UnicodeDecodeError:
            return ""


def _fail(problem: str) -> Arrays:
    raise ValueError(problem)
