"""Captions of many images in one file: JSON lines, CSV or Parquet.

A file has the captions of one captioner with the same settings. A command that is run again
captions what is missing: new images, and those that could not be read.
"""

import csv
import io
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from a2cap.data.errors import InputError
from a2cap.data.files.atomic import replacing
from a2cap.data.files.csv_cell import as_text, looks_like_formula
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.captioning.outputs.journal import Journal, other_file
from a2cap.pipeline.captioning.outputs.output import CaptionOutput, Origin, State, identity

_COLUMNS = frozenset(
    ("image", "model", "settings", "caption", "score", "beams", "width", "height", "boxes")
)
"""Columns of a Parquet file, those of `caption_line`."""


class JsonLines(CaptionOutput):
    """One JSON object per line and image, appended as the images are captioned.

    journal: file of the lines, if the output is another one. Raises LockedError while another
    process writes it, InputError for another file, and for captions of another origin.
    """

    def __init__(
        self, path: Path, origin: Origin, *, force: bool, journal: Path | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with ExitStack() as opened:
            self._journal = Journal(journal or path)
            opened.callback(self._journal.close)
            rows = self._earlier()
            if not force:
                origin.require_same(f"file: {str(path)!r}", rows, remedy="--output")
            self._restarts = force or not rows
            self._done = set() if force else {identity(Path(row["image"])) for row in rows}
            opened.pop_all()

    def _earlier(self) -> list[dict[str, Any]]:
        """Return the rows of earlier runs."""
        return self._journal.lines

    def state(self, image: Path) -> State:
        """Return "done" if there is a line of the image, "missing" otherwise."""
        return "done" if identity(image) in self._done else "missing"

    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Append a line."""
        if self._restarts:
            self._restart()
            self._restarts = False
        self._journal.append(line)
        return True

    def _restart(self) -> None:
        """Drop what earlier runs have written; the file is replaced by the first caption."""
        self._journal.drop()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


class Csv(JsonLines):
    """A row of image and caption for each image, appended as the images are captioned.

    A hidden journal beside it has the captioner and the settings, and shows whether a person has
    edited the file: such a file is kept unless `replace_foreign`.
    """

    def __init__(self, path: Path, origin: Origin, *, force: bool, replace_foreign: bool) -> None:
        self._replaces = replace_foreign
        self._due: bytes | None = None  # rows of the journal that a killed run has not written
        self._table: BinaryIO | None = None
        super().__init__(path, origin, force=force, journal=hidden(path))

    def _earlier(self) -> list[dict[str, Any]]:
        content = self._path.read_bytes() if self._path.is_file() else b""
        rows = self._journal.lines
        whole = _csv("image", "caption") + b"".join(map(_csv_row, rows))
        if not content:  # removed by the user
            return []
        if whole.startswith(content):
            self._due = whole[len(content) :]
            return rows
        if self._replaces:
            return []
        raise InputError(
            f"not written by a2, or changed since: {str(self._path)!r}; name another --output, or "
            "replace the file with --replace-foreign"
        )

    def state(self, image: Path) -> State:
        """Return "done" if there is a row of the image, "missing" otherwise."""
        return super().state(as_utf8(image))

    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Append a row."""
        row = {**line, "image": str(as_utf8(image))}
        if self._restarts:
            self._due = None
        table = self._opened_table()
        super().write(image, row)
        table.write(_csv_row(row))
        table.flush()
        return True

    def _opened_table(self) -> BinaryIO:
        if self._table is None:
            self._table = self._path.open("wb" if self._due is None else "ab")
            self._table.write(_csv("image", "caption") if self._due is None else self._due)
            self._due = b""
        return self._table

    def close(self) -> None:
        """Write the rows that a killed run has left, and close the files."""
        with ExitStack() as closing:
            closing.callback(super().close)
            if self._due:
                self._opened_table()
            if self._table is not None:
                self._table.close()


class Parquet(JsonLines):
    """A row per image, written at the end; until then the rows are in FILE.jsonl beside it."""

    def __init__(self, path: Path, origin: Origin, *, force: bool) -> None:
        self._arrow = load_pyarrow(path.name)
        self._rows: list[dict[str, Any]] = []
        super().__init__(path, origin, force=force, journal=path.with_name(f"{path.name}.jsonl"))

    def _earlier(self) -> list[dict[str, Any]]:
        if self._path.is_file():
            self._rows = self._read()
        return [*self._rows, *self._journal.lines]

    def _restart(self) -> None:
        super()._restart()
        self._rows = []

    def state(self, image: Path) -> State:
        """Return "done" if there is a row of the image, "missing" otherwise."""
        return super().state(as_utf8(image))

    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Append a row."""
        return super().write(image, {**line, "image": str(as_utf8(image))})

    def _read(self) -> list[dict[str, Any]]:
        reason = "is not Parquet"
        with suppress(self._arrow.ArrowException):
            table = self._arrow.parquet.read_table(self._path)
            if {"image", "model"} <= set(table.column_names) <= _COLUMNS:
                rows: list[dict[str, Any]] = table.to_pylist()
                return rows
            reason = f"has the columns {', '.join(table.column_names)}"
        raise other_file(self._path, reason)

    def close(self) -> None:
        """Write the table and remove the lines, which are locked until both are done."""
        with ExitStack() as closing:
            closing.callback(super().close)
            if lines := self._journal.read():
                rows = {row["image"]: row for row in [*self._rows, *lines]}
                table = self._arrow.Table.from_pylist(list(rows.values()))
                with replacing(self._path) as partial:
                    self._arrow.parquet.write_table(table, partial)
            self._journal.remove()


def hidden(path: Path) -> Path:
    """Return the path of the journal of a file that has no captioner and settings itself."""
    return path.with_name(f".{path.name}.jsonl")


def as_utf8(path: Path) -> Path:
    """Return the path with other bytes than UTF-8 as \\xe9: tables have no others."""
    return Path(os.fsencode(path).decode(errors="backslashreplace"))


def _csv_row(line: Mapping[str, Any]) -> bytes:
    name = str(line["image"])
    # the same file, and no formula
    return _csv(f"./{name}" if looks_like_formula(name) else name, as_text(line["caption"]))


def _csv(*cells: object) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode(errors="backslashreplace")
