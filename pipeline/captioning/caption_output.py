"""Captions of many images in files: JSON lines, Parquet, or a text file beside each image.

A command that is run again captions what is missing: new images, and those that could not be read.
A file has the captions of one captioner with the same settings; a text file states neither.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError, LockedError
from a2cap.data.files.atomic import replacing, write_durably
from a2cap.data.files.system import locked
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.captioning.caption_images import CaptionedImage
from a2cap.pipeline.captioning.named_images import ImageNames

SIDECARS = "sidecars"
"""Value of --output that asks for a text file beside each image."""

_FIRST_BYTES = b'{"image": '
"""Of each line."""
_COLUMNS = frozenset(
    ("image", "model", "settings", "caption", "score", "beams", "width", "height", "boxes")
)
"""Columns of a table, those of `caption_line`."""
_NAMED = ("image", "model")
"""Texts that each line has."""


class CaptionOutput(ABC):
    """Where captions go; a context, since Parquet is written at the end."""

    def __enter__(self) -> "CaptionOutput":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def has(self, image: Path) -> bool:
        """Return True if an earlier run has captioned the image."""

    @abstractmethod
    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Write the line of an image, as --json prints it."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


def caption_output(
    path: Path, *, model: str, settings: str = "", force: bool = False
) -> CaptionOutput:
    """Return the output that a user names.

    settings: those that the user set, as text; force: drop what earlier runs have written. Raises
    InputError for a file that is neither kind, and for captions of another model or settings.
    """
    if str(path) == SIDECARS:
        return Sidecars(force=force)
    if path.suffix == ".jsonl":
        return JsonLines(path, model=model, settings=settings, force=force)
    if path.suffix == ".parquet":
        return Parquet(path, model=model, settings=settings, force=force)
    raise InputError(
        f"--output has an unknown suffix: {str(path)!r}; name a .jsonl or .parquet file, or "
        f"{SIDECARS!r} for a text file beside each image"
    )


class Sidecars(CaptionOutput):
    """NAME.txt beside each image, of the names of `ImageNames`."""

    def __init__(self, *, force: bool) -> None:
        self._force = force
        self._names = ImageNames()

    def has(self, image: Path) -> bool:
        """Return True if there is a text file that is to be kept."""
        return self._text(image).is_file() and not self._force

    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Write the best caption."""
        write_durably(self._text(image), f"{line['caption']}\n".encode())

    def _text(self, image: Path) -> Path:
        return image.with_name(f"{self._names.of(image)}.txt")

    def close(self) -> None:
        """Leave everything as it is: each file is whole."""


class JsonLines(CaptionOutput):
    """One JSON object per line and image, appended as the images are captioned.

    The file changes with the first caption, so that an unusable model loses nothing. Raises
    LockedError while another process writes it.
    """

    def __init__(self, path: Path, *, model: str, settings: str, force: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._file = opened.enter_context(path.open("a+b"))
            _lock(path, opened)
            self._file.seek(0)
            content = self._file.read()
            whole = content[: content.rfind(b"\n") + 1]  # a killed run may leave half a line
            lines = [_parsed(path, line) for line in whole.splitlines()]
            half = content[len(whole) :]
            if not (half.startswith(_FIRST_BYTES) or _FIRST_BYTES.startswith(half)):
                raise _other_file(path, f"has the line {half[:40].decode(errors='replace')!r}")
            if not force:
                _require_same(path, lines, model, settings)
            self._done = set() if force else {line["image"] for line in lines}
            self._kept: int | None = 0 if force else len(whole)
            self._opened = opened.pop_all()

    def has(self, image: Path) -> bool:
        """Return True if there is a line of the image."""
        return str(image) in self._done

    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Append a line."""
        if self._kept is not None:
            self._file.truncate(self._kept)
            self._kept = None
        self._file.write(f"{json.dumps(line)}\n".encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


class Parquet(JsonLines):
    """A row per image, written at the end; until then the rows are in FILE.jsonl beside it."""

    def __init__(self, path: Path, *, model: str, settings: str, force: bool) -> None:
        self._arrow = load_pyarrow(path.name)
        self._table, self._rows = path, path.with_name(f"{path.name}.jsonl")
        if path.is_file() and not self._rows.is_file():
            rows = self._read()
            if not force:
                _require_same(path, rows, model, settings)
            # with force too: until the first caption nothing is replaced
            write_durably(self._rows, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        super().__init__(self._rows, model=model, settings=settings, force=force)

    def has(self, image: Path) -> bool:
        """Return True if there is a row of the image."""
        return super().has(_as_utf8(image))

    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Append a row."""
        super().write(image, {**line, "image": str(_as_utf8(image))})

    def _read(self) -> list[dict[str, Any]]:
        reason = "is not Parquet"
        with suppress(self._arrow.ArrowException):
            table = self._arrow.parquet.read_table(self._table)
            if {"image", "model"} <= set(table.column_names) <= _COLUMNS:
                rows: list[dict[str, Any]] = table.to_pylist()
                return rows
            reason = f"has the columns {', '.join(table.column_names)}"
        raise _other_file(self._table, reason)

    def close(self) -> None:
        """Write the table and remove the lines."""
        super().close()
        lines = self._rows.read_bytes().splitlines(keepends=True)
        rows = [_parsed(self._rows, line) for line in lines if line.endswith(b"\n")]
        if rows:
            with replacing(self._table) as partial:
                self._arrow.parquet.write_table(self._arrow.Table.from_pylist(rows), partial)
        self._rows.unlink()


def caption_line(
    image: str | None,
    found: CaptionedImage,
    model: str,
    beams: int | None = None,
    settings: str = "",
) -> dict[str, Any]:
    """Return the captions of an image as JSON values.

    beams: how many of them, None for all; settings: those that the user set, as text.
    """
    shown = found.beams[:beams]
    return {
        "image": image,
        "model": model,
        **({"settings": settings} if settings else {}),
        "caption": shown[0].caption,
        "score": shown[0].score,
        "beams": [{"caption": beam.caption, "score": beam.score} for beam in shown],
        "width": found.regions.width,
        "height": found.regions.height,
        "boxes": found.regions.boxes.astype(float).round(1).tolist(),
    }


def _lock(path: Path, opened: ExitStack) -> None:
    """Lock a file as long as the stack is open; raise LockedError if another process has it."""
    try:
        opened.enter_context(locked(path, exclusive=True))
    except BlockingIOError as error:
        raise LockedError(
            f"another process writes captions into this file: {str(path)!r}; wait for it, or name "
            "another --output"
        ) from error
    except OSError:  # a file system without locks
        pass


def _as_utf8(path: Path) -> Path:
    """Return the path with other bytes than UTF-8 as \\xe9: Parquet has no others."""
    return Path(os.fsencode(path).decode(errors="backslashreplace"))


def _require_same(
    path: Path, lines: Iterable[Mapping[str, Any]], model: str, settings: str
) -> None:
    """Raise InputError if another captioner, or one of other settings, has written lines."""
    for what, own, key in (("models", model, "model"), ("settings", settings, "settings")):
        found = (line.get(key) or "" for line in lines)
        other = next((value for value in found if value != own), own)
        if other != own:
            raise InputError(
                f"captions of two {what} in one file: {str(path)!r} has those of "
                f"{other or 'none'!r}, this is {own or 'none'!r}; name another --output, or "
                "caption all images again with --force"
            )


def _parsed(path: Path, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
        if isinstance(found, dict) and all(isinstance(found.get(k), str) for k in _NAMED):
            return found
    except (ValueError, RecursionError):
        pass
    raise _other_file(path, f"has the line {line[:40].decode(errors='replace')!r}")


def _other_file(path: Path, reason: str) -> InputError:
    return InputError(f"not a file of captions: {str(path)!r} {reason}; name another --output")
