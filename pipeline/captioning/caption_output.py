"""Captions of many images in files: JSON lines, Parquet, or a text file beside each image.

A command that is run again captions what is missing: new images, and those that could not be read.
A file has the captions of one captioner; a text file does not state its captioner.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.atomic import replacing, write_durably
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.captioning.caption_images import CaptionedImage

SIDECARS = "sidecars"
"""Value of --output that asks for a text file beside each image."""


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


def caption_output(path: Path, *, model: str, force: bool = False) -> CaptionOutput:
    """Return the output that a user names; force: drop what earlier runs have written.

    Raises InputError for a file that is neither kind, and for captions of another model.
    """
    if str(path) == SIDECARS:
        return Sidecars(force=force)
    if path.suffix == ".jsonl":
        return JsonLines(path, model=model, force=force)
    if path.suffix == ".parquet":
        return Parquet(path, model=model, force=force)
    raise InputError(
        f"--output has an unknown suffix: {str(path)!r}; name a .jsonl or .parquet file, or "
        f"{SIDECARS!r} for a text file beside each image"
    )


class Sidecars(CaptionOutput):
    """NAME.txt beside each image."""

    def __init__(self, *, force: bool) -> None:
        self._force = force

    def has(self, image: Path) -> bool:
        """Return True if there is a text file that is to be kept."""
        return not self._force and image.with_suffix(".txt").is_file()

    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Write the best caption."""
        write_durably(image.with_suffix(".txt"), f"{line['caption']}\n".encode())

    def close(self) -> None:
        """Leave everything as it is: each file is whole."""


class JsonLines(CaptionOutput):
    """One JSON object per line and image, appended as the images are captioned."""

    def __init__(self, path: Path, *, model: str, force: bool) -> None:
        content = path.read_bytes() if path.is_file() and not force else b""
        whole = content[: content.rfind(b"\n") + 1]  # a killed run may leave half a line
        lines = [_parsed(path, line) for line in whole.splitlines()]
        _require_model(path, lines, model)
        self._done = {line["image"] for line in lines}
        self._file = path.open("r+b" if content else "wb")
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def has(self, image: Path) -> bool:
        """Return True if there is a line of the image."""
        return str(image) in self._done

    def write(self, image: Path, line: Mapping[str, Any]) -> None:
        """Append a line."""
        self._file.write(f"{json.dumps(line)}\n".encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Parquet(JsonLines):
    """A row per image, written at the end; until then the rows are in FILE.jsonl beside it."""

    def __init__(self, path: Path, *, model: str, force: bool) -> None:
        self._arrow = load_pyarrow(path.name)
        self._table, self._rows = path, path.with_name(f"{path.name}.jsonl")
        if path.is_file() and not self._rows.is_file() and not force:
            rows = self._arrow.parquet.read_table(path).to_pylist()
            _require_model(path, rows, model)
            write_durably(self._rows, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        super().__init__(self._rows, model=model, force=force)

    def close(self) -> None:
        """Write the table and remove the lines."""
        super().close()
        rows = [_parsed(self._rows, line) for line in self._rows.read_bytes().splitlines()]
        if rows:
            with replacing(self._table) as partial:
                self._arrow.parquet.write_table(self._arrow.Table.from_pylist(rows), partial)
        self._rows.unlink()


def caption_line(
    image: str | None, found: CaptionedImage, model: str, beams: int | None = None
) -> dict[str, Any]:
    """Return the captions of an image as JSON values; beams: how many of them, None for all."""
    shown = found.beams[:beams]
    return {
        "image": image,
        "model": model,
        "caption": shown[0].caption,
        "score": shown[0].score,
        "beams": [{"caption": beam.caption, "score": beam.score} for beam in shown],
        "width": found.regions.width,
        "height": found.regions.height,
        "boxes": found.regions.boxes.astype(float).round(1).tolist(),
    }


def _require_model(path: Path, lines: Iterable[Mapping[str, Any]], model: str) -> None:
    """Raise InputError if another captioner has written lines of a file."""
    other = next((line["model"] for line in lines if line["model"] != model), model)
    if other != model:
        raise InputError(
            f"captions of two models in one file: {str(path)!r} has those of {other!r}, this is "
            f"{model!r}; name another --output, or caption all images again with --force"
        )


def _parsed(path: Path, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
        if isinstance(found, dict) and {"image", "model"} <= found.keys():
            return found
    except ValueError:
        pass
    raise InputError(
        f"not a file of captions: {str(path)!r} has the line {line[:40].decode(errors='replace')!r}"
        "; name another --output"
    )
