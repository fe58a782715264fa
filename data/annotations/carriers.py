"""Carriers of records that are one text: JSON, CSV and TSV, token files of Flickr, lines."""

import csv
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np

from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.json_items import BadItem, key_member, member, text_member
from a2cap.data.annotations.members import Members, number_of
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    REFERENCE_FIELDS,
    Fields,
    Reading,
    Record,
    captions_of,
    file_of,
    first_value,
    is_numbered,
    raw_image,
)
from a2cap.data.annotations.split_list import split_of
from a2cap.data.annotations.stored_rows import StoredRows
from a2cap.data.files.json_file import parse_json
from a2cap.data.identities import Key
from a2cap.data.image_ids import IMAGE_SUFFIXES

_TOKEN_LINE = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
_MOST_LINES = 100
"""Lines of a cell in quotation marks; more are a mark that does not close."""


def is_token_line(line: str) -> bool:
    """Return True for `image.jpg#0<tab>caption`."""
    return _TOKEN_LINE.fullmatch(line) is not None


def token_records(lines: Iterable[str], reading: Reading) -> Iterator[Record]:
    """Yield the lines of a token file."""
    for number, line in enumerate(lines, start=1):
        with reading.skipping(f"line {number}") as position:
            if line.strip():
                match = _TOKEN_LINE.fullmatch(line)
                if match is None:
                    raise BadItem(f"not 'image.jpg#0<tab>caption': {line[:40]!r}")
                yield position, {"image": match[1], "caption": match[2]}


def header_of(line: str, fields: Fields) -> tuple[str, list[str]] | None:
    """Return the delimiter and the columns of a table, None without images and captions.

    Captions beside references need no images: their rows are in order.
    """
    names = {name.lower(): name for name in (*fields.image, *fields.captions, *fields.split)}
    for delimiter in ",;\t|":
        titles = [title.strip().strip('"').lower() for title in line.split(delimiter)]
        columns = [names.get(title, title) for title in titles]
        beside = {c.rstrip("0123456789").rstrip("_") for c in columns} & {*REFERENCE_FIELDS}
        is_pair = fields.is_scored and beside and len(columns) > 1
        has_images = is_pair or not {*fields.image}.isdisjoint(columns)
        if has_images and any(c in fields.captions or is_numbered(c) for c in columns):
            return delimiter, columns
    return None


def csv_records(lines: Iterable[str], reading: Reading) -> Iterator[Record]:
    """Yield the rows below the header. A cell in quotation marks may have line breaks (RFC 4180).

    A quotation mark that opens and does not close costs its own line, not the lines below.
    """
    rest = iter(lines)
    delimiter, columns = header_of(next(rest, ""), reading.fields) or (",", [])
    number, window = 2, [*islice(rest, _MOST_LINES)]
    while window:
        count = _lines_of_row(window, delimiter, columns)
        with reading.skipping(f"line {number}") as position:
            if window[0].strip():
                yield position, _cells("\n".join(window[:count]), delimiter, columns)
        number += count
        window = [*window[count:], *islice(rest, count)]


def _lines_of_row(lines: Sequence[str], delimiter: str, columns: Sequence[str]) -> int:
    """Return the number of lines of the row that begins with the first."""
    quotes = lines[0].count('"')
    for count, line in enumerate(lines[1:], start=2):
        # in Flickr30k's file a mark may open a caption and not close; a row is inside no cell
        if quotes % 2 == 0 or delimiter == "|" or _begins_a_row(line, delimiter, columns):
            break
        quotes += line.count('"')
        if quotes % 2 == 0:
            with suppress(BadItem):
                _cells("\n".join(lines[:count]), delimiter, columns)
                return count
    return 1


def _begins_a_row(line: str, delimiter: str, columns: Sequence[str]) -> bool:
    cells = zip(columns, line.split(delimiter), strict=False)
    images = (cell.strip().strip('"').lower() for name, cell in cells if name in IMAGE_FIELDS)
    return any(image.endswith(tuple(IMAGE_SUFFIXES)) for image in images)


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
    if len(cells) > count and '"' not in text and columns[-1] in CAPTION_FIELDS:
        cells = text.split(delimiter, count - 1)  # a caption with commas, not quoted
    if len(cells) < count or any(map(str.strip, cells[count:])):
        raise BadItem(f"{len(cells)} columns, {count} expected")
    return dict(zip(columns, map(str.strip, cells), strict=False))


def karpathy(document: Members, reading: Reading) -> Iterator[Record]:
    """Yield the images of Karpathy's layout."""
    return ((position, item) for _, position, item in document.listed("images"))


def coco(document: Members, reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of COCO with their captions in the order of ids, as `COCO` has them."""
    rows = StoredRows[tuple[Any, ...]](lambda *row: row)
    owners = array("q")
    for _, position, item in document.listed("images"):
        with reading.skipping(position):
            number = key_member(item, "id")
            rows.append((position, _file_of_entry(item), number), repr(number))
            owners.append(number_of(number))
    known, seen = array("q", np.sort(owners).tobytes()), set[Key]()
    for place, position, item in document.listed("annotations"):
        with reading.skipping(position):
            owner, caption = key_member(item, "image_id"), member(item, "caption")
            at = bisect_left(known, number_of(owner))
            if number_of(owner) not in known[at : at + 1]:
                raise BadItem(f"caption of an unknown image: {owner!r:.40}")
            rejected = bool(item.get("is_rejected") or item.get("is_precanned"))
            if "id" in item and not rejected:
                identity = key_member(item, "id")
                # one caption twice would count as two references
                if identity in seen:
                    raise BadItem(f"duplicate id {identity!r}")
                if number_of(identity) in document.repeated_ids:
                    seen.add(identity)
            rows.append((place, item.get("id"), caption, rejected), repr(owner))
    has_images = False
    for group in rows.groups():
        for image in _image_of_coco(group, reading):
            has_images = True
            yield image
    for place, *_, rejected in () if has_images else rows:  # why there is none
        if rejected is True:
            reading.skip(f"annotations[{place}]", "rejected: it says only that the image is bad")


def _image_of_coco(rows: Sequence[tuple[Any, ...]], reading: Reading) -> Iterator[ImageRow]:
    """Yield the image of an id, unless it is of several files or VizWiz rejects all captions.

    rows: position, file and id of its entries; place, id and text of its captions, and True for one
    that says only that the image is bad.
    """
    entries = [row for row in rows if isinstance(row[0], str)]
    captions = [row for row in rows if not isinstance(row[0], str)]
    usable = [row for row in captions if not row[3]]
    number = entries[0][2]
    if len({file for _, file, _ in entries}) > 1:  # nothing states whose the captions are
        both = " and ".join(repr(file) for _, file, _ in entries[:2])
        for position, *_ in entries:
            reading.skip(position, f"duplicate id {number!r}, of {both}")
    elif usable or not captions:
        order = min((place for place, *_ in usable), default=0)
        # the files of COCO are not in the order of ids
        usable.sort(key=lambda row: row[1] if isinstance(row[1], int) else row[0])
        texts = [text for _, _, text, _ in usable]
        position, file, _ = entries[0]
        yield ImageRow(position, file, None, texts, number, number, order)


def _file_of_entry(item: Mapping[str, object]) -> str:
    name = "file_name" if "file_name" in item else "id"
    return file_of(item[name], name)


def lists(document: Members, reading: Reading) -> Iterator[Record]:
    """Yield the records of lists by name; a name may be that of their split."""
    for key, place, values in document:
        if place is not None:
            has_split = split_of(key) and isinstance(values, dict)
            yield f"{key}[{place}]", {"split": key, **values} if has_split else values


def textcaps(document: Members, reading: Reading) -> Iterator[ImageRow]:
    """Yield the entries of TextCaps, whose images are named by id."""
    fields = Fields(captions=["caption_str"], split=["set_name"])
    for _, position, item in document.listed("data"):
        with reading.skipping(position):
            yield raw_image((position, item), fields, f"{text_member(item, 'image_id')}.jpg")


def dictionary(document: Members, reading: Reading) -> Iterator[Record]:
    """Yield the records of {image: captions}, or {image: record}."""
    for key, rows in groupby(document, key=itemgetter(0)):
        places, items = zip(*((place, item) for _, place, item in rows), strict=True)
        value = items[0] if places[0] is None else [*items]
        values = value if isinstance(value, dict) else {"captions": value}
        yield f"{key!r:.60}", {**values, reading.fields.image[0]: key}


def json_lines(lines: Iterable[str], reading: Reading) -> Iterator[Record]:
    """Yield the record of each line."""
    for number, line in enumerate(lines, start=1):
        with reading.skipping(f"line {number}") as position:
            if line.strip():
                yield position, parse_json(line, where=position)


def listed_records(items: Iterable[object], reading: Reading) -> Iterator[Record]:
    """Yield the items of a list."""
    return ((f"entry {number}", item) for number, item in enumerate(items, start=1))


def in_order(items: Iterable[object], reading: Reading, what: str = "item") -> Iterator[ImageRow]:
    """Yield captions, or lists of them, that are in the order of other files."""
    for number, item in enumerate(items, start=1):
        with reading.skipping(f"{what} {number}") as position:
            yield ImageRow(position, "", None, captions_of({"captions": item}, ["captions"]))


def first_of(value: object) -> Mapping[str, object]:
    """Return the first item of a list of objects, else an empty one."""
    first = value[0] if isinstance(value, list) and value else {}
    return first if isinstance(first, dict) else {}


def kind_of(document: Members, fields: Fields) -> str | None:
    """Return the form of a JSON object, None for another one, such as instances of COCO."""
    firsts = document.firsts
    images, annotations = firsts.get("images"), document.listed("annotations")
    has_texts = any(isinstance(item, dict) and "caption" in item for *_, item in annotations)
    records = (first_value(first_of(values), fields.image) for values in firsts.values())
    has_records = any(first is not None for first in records)
    kinds = {
        "karpathy": isinstance(images, list) and "annotations" not in firsts,
        "coco": isinstance(images, list) and (has_texts or firsts.get("annotations") == []),
        "textcaps": "caption_str" in first_of(firsts.get("data")),
        "lists": "images" not in firsts and (has_records or all(map(split_of, firsts))),
        "dictionary": firsts.keys().isdisjoint(("images", "annotations")),
    }
    return next((kind for kind, matches in kinds.items() if firsts and matches), None)
