"""Tab-separated region features, one line of base64 per image, mostly without a header line.

Published files often contain broken lines: each is skipped with its reason, and what is whole of a
line that was joined with the next one is read.
"""

import base64
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from gzip import BadGzipFile
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import arrays_of, as_text
from a2cap.data.features.formats.feature_format import Arrays, Entry, ImageFeatures
from a2cap.data.features.formats.layouts import LAYOUTS, Layout, layout_of

OpenFile = Callable[[], BinaryIO]

_CLEAR_ID = re.compile(rb"(?:.*=|[A-Za-z0-9+/]*?)((?<==)\d+|COCO_[a-z]+\d{4}_\d{12})")
"""The end of a torn base64 text and the id after it. Digits may belong to either of them, unless
padding ends the text."""


class TsvContainer:
    """The lines of a file.

    open_file: opens it from the start, so that packed files are read alike; limit: bytes of a line.
    """

    def __init__(self, open_file: OpenFile, name: str, limit: int) -> None:
        self._open, self._limit, self.title = open_file, limit, f"{name!r} (TSV)"
        with open_file() as file:
            first = next(self._lines(file), b"").rstrip(b"\r\n").split(b"\t")
        names = [as_text(value[:99].decode(errors="replace")) for value in first]
        self._has_header = layout_of(names) is not None
        by_count = {len(one.columns): one.columns for one in LAYOUTS if one.columns}
        self._columns = tuple(names) if self._has_header else by_count.get(len(first), ())
        if not self._columns:
            counts = ", ".join(f"{len(one.columns)} ({one.name})" for one in LAYOUTS if one.columns)
            raise InputError(
                f"first line of {name!r} has {len(first)} columns, not {counts}; name a file of "
                "one of them, or add a first line with the names of the columns"
            )
        ids = [one for one in self._columns if one in ("image_id", "img_id")]
        if not ids:
            raise InputError(
                f"{name!r} has no column of ids: its first line is {', '.join(names)}; call the "
                "column image_id"
            )
        self._id_column = self._columns.index(ids[0])
        self._length = 0  # of the last column, in the latest whole line

    def __len__(self) -> int:
        with self._open() as file:
            return sum(1 for _ in self._lines(file)) - self._has_header

    def __iter__(self) -> Iterator[Entry]:
        with self._open() as file:
            for number, line in enumerate(self._lines(file), start=1):
                if number > self._has_header:
                    yield from self._entries(line.rstrip(b"\r\n").split(b"\t"), f"line {number}")

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        try:
            yield from iter(partial(file.readline, self._limit), b"")
        except (EOFError, BadGzipFile, BadZipFile, zlib.error) as error:
            raise InputError(f"{self.title} is damaged: {error}; download it again") from error

    def _entries(self, values: list[bytes], position: str) -> Iterator[Entry]:
        """Yield the image of a line, or those of a line in which a torn one was continued."""
        count = len(self._columns)
        if len(values) == count:
            self._length = len(values[-1])
            yield Entry(self._name(values), partial(self._arrays, values), position)
            return
        problem = f"{len(values)} of {count} columns"
        if not count < len(values) < 2 * count or self._id_column:
            yield Entry("", partial(_fail, problem), position)
            return
        # the last columns are a whole line, the first of them continues the torn one
        start = len(values) - count
        torn, whole = values[:start], values[start:]
        joined, end = whole[0], self._length
        clear = _CLEAR_ID.fullmatch(joined)
        if start == count - 1 and 0 < end < len(joined) and joined[end:].isascii():
            yield from self._entries([*torn, joined[:end]], position)
            yield from self._entries([joined[end:], *whole[1:]], position)
            return
        problem += ": a torn line joined with the next"
        yield Entry(self._name(torn), partial(_fail, problem), position)
        if clear is None:
            problem = (
                f"the id of the line joined with a torn one cannot be told from {joined[-20:]!r}"
            )
            yield Entry("", partial(_fail, problem), position)
        else:
            yield from self._entries([clear[1], *whole[1:]], position)

    def _name(self, values: list[bytes]) -> str:
        """Return the name of a line's image, damaged or not; an empty one if there is none."""
        try:
            return as_text(values[self._id_column])
        except UnicodeDecodeError:
            return ""

    def _arrays(self, values: list[bytes]) -> Arrays:
        return dict(zip(self._columns, values, strict=True))


def _fail(problem: str) -> Arrays:
    raise ValueError(problem)


def write_tsv(
    path: Path, images: Iterable[ImageFeatures], *, layout: Layout, prefix: str = ""
) -> None:
    """Write images; prefix: text before the id in LXMERT's names, such as "COCO_val2014_"."""
    with path.open("wb") as file:
        for image in images:
            arrays = arrays_of(image, layout, prefix)
            file.write(b"\t".join(_encoded(arrays[name]) for name in layout.columns) + b"\n")


def _encoded(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return base64.b64encode(value.tobytes())
    return str(value).encode()
