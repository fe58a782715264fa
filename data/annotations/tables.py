"""Captions in text files: CSV, token files of Flickr8k and Flickr30k, a text file per image."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.raw_image import RawImage, Skip, skipping
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_text
from a2cap.data.image_ids import list_images

SUFFIXES = (".csv", ".tsv", ".txt", ".token")

_COLUMNS = {
    "image": ("image", "image_id", "image_name", "file", "file_name", "filename", "path"),
    "caption": ("caption", "comment", "text", "sentence"),
    "split": ("split",),
}
"""Columns, and their names in the files of Flickr8k, Flickr30k and others."""

_METADATA = ("metadata.jsonl", "metadata.csv")
TOKEN_LINE = re.compile(r"([^\t]+)#[0-9]+\t(.*)")

Row = tuple[str, str, str | None, str]
"""Position, image file, split and caption."""


def read_table(text: str, name: str, skip: Skip) -> tuple[list[RawImage], bool]:
    """Return the images of a text in the order of their first caption, and True if it has splits.

    Raises InputError if neither a column of images and of captions nor `image.jpg#0<tab>caption` is
    in the first line.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if TOKEN_LINE.fullmatch(lines[0]):
        return _grouped(_token_rows(lines, skip), skip), False
    delimiter, columns = _header(lines[0], name)
    rows = _csv_rows(lines[1:], delimiter, len(lines[0].split(delimiter)), columns, skip)
    return _grouped(rows, skip), "split" in columns


def metadata_files(folder: Path) -> list[Path]:
    """Return each metadata.jsonl and metadata.csv below a folder, sorted; hidden ones count not."""
    found = (path for name in _METADATA for path in folder.rglob(name) if path.is_file())
    return sorted(
        p for p in found if not any(part[0] == "." for part in p.relative_to(folder).parts)
    )


def caption_files(folder: Path) -> dict[str, Path]:
    """Map names to the files with the captions of a folder: metadata, or texts beside images."""
    metadata = metadata_files(folder)
    if metadata:
        return {file.relative_to(folder).as_posix(): file for file in metadata}
    return {str(file): folder / file.with_suffix(".txt") for file in list_images(folder)}


def read_folder(folder: Path, skip: Skip) -> Iterator[RawImage]:
    """Yield each image below a folder with the lines of the text file beside it as captions."""
    for image in list_images(folder):
        with skipping(image.as_posix(), skip) as position:
            text = folder / image.with_suffix(".txt")
            if not text.is_file():
                raise BadItem(f"no {text.name!r} beside the image")
            captions = [line for line in read_text(text).splitlines() if line.strip()]
            yield RawImage(position, image.as_posix(), None, captions)


def _header(line: str, name: str) -> tuple[str, dict[str, int]]:
    """Return the delimiter, and the index of each known column."""
    for delimiter in ",;\t|":
        titles = [title.strip().strip('"').lower() for title in line.split(delimiter)]
        found = {
            column: titles.index(title)
            for column, names in _COLUMNS.items()
            for title in names
            if title in titles
        }
        if {"image", "caption"} <= found.keys():
            return delimiter, found
    raise InputError(
        f"no caption column in {name}: its first line is {line[:60]!r}; "
        "name the columns image and caption"
    )


def _csv_rows(
    lines: Sequence[str], delimiter: str, count: int, columns: dict[str, int], skip: Skip
) -> Iterator[Row]:
    """Yield the rows below the header, whose `count` columns each line has.

    A caption is of one line: a quotation mark that opens and does not close would take the lines
    below into its caption, and their images with them.
    """
    for number, line in enumerate(lines, start=2):
        with skipping(f"line {number}", skip) as position:
            if not line.strip():
                continue
            # in Flickr30k's file a mark may open a caption and not close
            text = line.replace('"', "") if delimiter == "|" and line.count('"') % 2 else line
            reader = csv.reader([text], delimiter=delimiter, skipinitialspace=True, strict=True)
            try:
                fields = next(reader)
            except csv.Error as error:  # a carriage return outside of quotes, a field above 128 KiB
                if line.count('"') % 2:
                    raise BadItem("a quotation mark that does not close") from error
                raise BadItem(f"not CSV: {str(error).partition(' - ')[0]}") from error
            if len(fields) > count and '"' not in text and columns["caption"] == count - 1:
                fields = text.split(delimiter, count - 1)  # a caption with commas, not quoted
            if len(fields) <= max(columns.values()) or any(map(str.strip, fields[count:])):
                raise BadItem(f"{len(fields)} columns, {count} expected")
            split = fields[columns["split"]].strip() if "split" in columns else None
            caption = fields[columns["caption"]].strip()
            yield position, fields[columns["image"]].strip(), split, caption


def _token_rows(lines: Sequence[str], skip: Skip) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        with skipping(f"line {number}", skip) as position:
            if not line.strip():
                continue
            match = TOKEN_LINE.fullmatch(line)
            if match is None:
                raise BadItem(f"not 'image.jpg#0<tab>caption': {line[:40]!r}")
            yield position, match[1], None, match[2]


def _grouped(rows: Iterator[Row], skip: Skip) -> list[RawImage]:
    images: dict[str, tuple[RawImage, list[object]]] = {}
    for position, file, split, caption in rows:
        captions: list[object] = []
        image, captions = images.setdefault(
            file, (RawImage(position, file, split, captions), captions)
        )
        if image.split == split:
            captions.append(caption)
        else:
            skip(position, f"split {split!r}, {image.split!r} in {image.position}")
    return [image for image, _ in images.values()]
