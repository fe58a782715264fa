"""Carriers of records besides JSON: CSV and TSV, token files of Flickr, tars, Parquet and Arrow."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    REFERENCE_FIELDS,
    Fields,
    RawImage,
    Reading,
    Record,
    caption_field,
    is_numbered,
    raw_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import decode_text, parse_json
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.data.sources.parquet import Table
from a2cap.data.sources.tar import Tar, is_image

_TOKEN_LINE = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
_MOST_LINES = 100
"""Lines of a cell in quotation marks; more are a mark that does not close."""


def is_token_file(text: str, fields: Fields) -> bool:
    """Return True if the first line is `image.jpg#0<tab>caption`."""
    return _TOKEN_LINE.fullmatch(text.partition("\n")[0].rstrip("\r")) is not None


def token_records(text: str, reading: Reading) -> Iterator[Record]:
    """Yield the lines of a token file."""
    for number, line in enumerate(_lines(text), start=1):
        with reading.skipping(f"line {number}") as position:
            if not line.strip():
                continue
            match = _TOKEN_LINE.fullmatch(line)
            if match is None:
                raise BadItem(f"not 'image.jpg#0<tab>caption': {line[:40]!r}")
            yield Record(position, {"image": match[1], "caption": match[2]})


def header_of(text: str, fields: Fields) -> tuple[str, list[str]] | None:
    """Return the delimiter and the columns of a table, None without images and captions.

    Captions beside references need no images: their rows are in order.
    """
    line = text.partition("\n")[0]
    names = {name.lower(): name for name in (*fields.image, *fields.captions, *fields.split)}
    for delimiter in ",;\t|":
        titles = [title.strip().strip('"') for title in line.split(delimiter)]
        columns = [names.get(title.lower(), title.lower()) for title in titles]
        captions = [c for c in columns if c in fields.captions or is_numbered(c)]
        has_images = not {*fields.image}.isdisjoint(columns)
        beside = (c.rstrip("0123456789").rstrip("_") in REFERENCE_FIELDS for c in columns)
        is_pair = fields.is_scored and any(beside)
        if captions and (has_images or (is_pair and len(columns) > 1)):
            return delimiter, columns
    return None


def csv_records(text: str, reading: Reading) -> Iterator[Record]:
    """Yield the rows below the header. A cell in quotation marks may have line breaks (RFC 4180).

    A quotation mark that opens and does not close costs its own line, not the lines below.
    """
    delimiter, columns = header_of(text, reading.fields) or (",", [])
    lines = _lines(text)
    following = 1
    while following < len(lines):
        first = following
        following += 1
        if not lines[first].strip():
            continue
        with reading.skipping(f"line {first + 1}") as position:
            following = _end_of_row(lines, first, delimiter, columns)
            row = "\n".join(lines[first:following])
            yield Record(position, _cells(row, delimiter, columns))


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def _end_of_row(lines: list[str], first: int, delimiter: str, columns: Sequence[str]) -> int:
    """Return the index after the last line of the row that begins at `first`."""
    if delimiter == "|" or lines[first].count('"') % 2 == 0:
        return first + 1  # in Flickr30k's file a mark may open a caption and not close
    for end in range(first + 2, min(first + 2 + _MOST_LINES, len(lines) + 1)):
        # a line that is a row of its own is not inside a cell
        if lines[end - 1].count('"') % 2 == 0:
            if _begins_a_row(lines[end - 1], delimiter, columns):
                break
            continue
        row = "\n".join(lines[first:end])
        with suppress(csv.Error):
            if len(next(csv.reader([row], delimiter=delimiter, strict=True))) == len(columns):
                return end
        break
    return first + 1


def _begins_a_row(line: str, delimiter: str, columns: Sequence[str]) -> bool:
    place = next((at for at, name in enumerate(columns) if name in IMAGE_FIELDS), None)
    cells = line.split(delimiter)
    if place is None or place >= len(cells):
        return False
    return cells[place].strip().strip('"').lower().endswith(tuple(IMAGE_SUFFIXES))


def _cells(row: str, delimiter: str, columns: Sequence[str]) -> dict[str, str]:
    count = len(columns)
    # in Flickr30k's file a mark may open a caption and not close
    text = row.replace('"', "") if delimiter == "|" and row.count('"') % 2 else row
    try:
        cells = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error as error:  # a carriage return outside of quotes, a field above 128 KiB
        if row.count('"') % 2:
            raise BadItem("a quotation mark that does not close") from error
        raise BadItem(f"not CSV: {str(error).partition(' - ')[0]}") from error
    is_last = columns[-1] in CAPTION_FIELDS
    if len(cells) > count and '"' not in text and is_last:
        cells = text.split(delimiter, count - 1)  # a caption with commas, not quoted
    if len(cells) < count or any(map(str.strip, cells[count:])):
        raise BadItem(f"{len(cells)} columns, {count} expected")
    return dict(zip(columns, map(str.strip, cells), strict=False))


def tar_images(tar: Tar, reading: Reading) -> Iterator[RawImage]:
    """Yield the images of a tar with the captions in KEY.json, else the lines of KEY.txt."""
    images: dict[str, str] = {}
    texts: dict[str, bytes | InputError] = {}
    for name, content in tar.members(lambda name: PurePosixPath(name).suffix in (".txt", ".json")):
        if is_image(name):
            images[str(PurePosixPath(name).with_suffix(""))] = name
        elif content:
            texts[name] = content
    for key, file in images.items():
        with reading.skipping(f"{file} in {tar.name}") as position:
            record, lines = texts.get(f"{key}.json", b"{}"), texts.get(f"{key}.txt", b"")
            if isinstance(record, InputError) or isinstance(lines, InputError):
                raise InputError(f"captions of {key!r} are too large; shorten them")
            values = parse_json(decode_text(record, where=f"{key}.json"), where=f"{key}.json")
            if not isinstance(values, dict):
                raise BadItem(f"'{key}.json' is not a JSON object")
            names = reading.fields.captions
            if caption_field(values, names) is None and not any(map(is_numbered, values)):
                text = decode_text(lines, where=f"{key}.txt")
                values["captions"] = [line for line in text.splitlines() if line.strip()]
            yield raw_image(Record(position, values), reading.fields, file)


def table_images(table: Table, reading: Reading) -> Iterator[RawImage]:
    """Yield the rows of a table; raise InputError if it has no column of captions."""
    fields = reading.fields
    captions = table.first_of(fields.captions) or sorted(filter(is_numbered, table.columns))
    if not captions:
        raise InputError(
            f"no column of captions in {table.name!r}, it has {', '.join(table.columns)}; "
            "name it as data.fields.caption"
        )
    for row, values in table.rows([*table.naming, *captions, *table.first_of(fields.split)]):
        with reading.skipping(f"row {row} in {table.name}") as position:
            record = Record(position, {"split": table.split, **values})
            yield raw_image(record, fields, f"{table.identity(row, values)}.jpg")
