"""Carriers of records: JSON, CSV and TSV, token files of Flickr, lines, tars and tables."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, takewhile
from operator import itemgetter
from pathlib import Path, PurePosixPath

from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.json_items import BadItem, key_member, member, text_member
from a2cap.data.annotations.members import Members, number_of
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    IMAGE_FIELDS,
    NAME_CAPTION,
    REFERENCE_FIELDS,
    Fields,
    ListedItem,
    Reading,
    captions_of,
    file_of,
    first_value,
    has_captions,
    is_numbered,
    raw_image,
)
from a2cap.data.annotations.split_list import split_of
from a2cap.data.annotations.stored_rows import StoredRows
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import decode_text, parse_json, read_text, require_whole
from a2cap.data.identities import Key
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.data.sources.open_source import open_source
from a2cap.data.sources.parquet import Table
from a2cap.data.sources.tar import Tar, is_image

TOKEN_LINE = re.compile(r"(?P<image>[^\t]+)#[0-9]+\t(?P<caption>.*)")
_OPEN = "a quotation mark that does not close"
_MOST_LINES = 100
"""Lines of a cell in quotation marks; more are a mark that does not close."""


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


def csv_rows(lines: Iterable[ListedItem], reading: Reading) -> Iterator[ListedItem]:
    """Yield the rows below the header. A cell in quotation marks may have line breaks (RFC 4180).

    A quotation mark that opens and does not close costs its own line, not the lines below.
    """
    rest = iter(lines)
    delimiter, columns = header_of(next(rest)[1], reading.fields) or (",", [])
    window = [*islice(rest, _MOST_LINES)]
    while window:
        count, (position, line) = 1, window[0]
        with reading.skipping(position):
            if line.strip():
                row, count = _row((line for _, line in window), delimiter, columns)
                yield position, row
        window = [*window[count:], *islice(rest, count)]


def _row(
    lines: Iterator[str], delimiter: str, columns: Sequence[str]
) -> tuple[dict[str, str], int]:
    """Return the cells of the row that begins with the first line, and the number of its lines."""
    text, count = next(lines), len(columns)
    is_open = text.count('"') % 2 == 1
    if is_open and delimiter == "|":
        # in Flickr30k's file a mark may open a caption and not close
        text = text.replace('"', "")
    # a row is inside no cell
    others = takewhile(lambda line: not _begins_a_row(line, delimiter, columns), lines)
    rows = (f"{line}\n" for line in chain([text], others if is_open else ()))
    reader = csv.reader(rows, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        cells = next(reader)
    except csv.Error as error:  # a carriage return outside of quotes, a field above 128 KiB
        reason = f"not CSV: {str(error).partition(' - ')[0]}"
        raise BadItem(_OPEN if is_open else reason) from error
    if len(cells) > count and '"' not in text and columns[-1] in CAPTION_FIELDS:
        cells = text.split(delimiter, count - 1)  # a caption with commas, not quoted
    if len(cells) < count or any(map(str.strip, cells[count:])):
        reason = f"{len(cells)} columns, {count} expected"
        raise BadItem(reason if reader.line_num == 1 else _OPEN)
    return dict(zip(columns, map(str.strip, cells), strict=False)), reader.line_num


def _begins_a_row(line: str, delimiter: str, columns: Sequence[str]) -> bool:
    cells = zip(columns, line.split(delimiter), strict=False)
    images = (cell.strip().strip('"').lower() for name, cell in cells if name in IMAGE_FIELDS)
    return any(image.endswith(tuple(IMAGE_SUFFIXES)) for image in images)


def coco(document: Members, reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of COCO with their captions in the order of ids, as `COCO` has them."""
    rows = StoredRows(ImageRow)
    numbers, identities, rejected = set[Key](), set[Key](), list[str]()
    for position, item in document.listed("images"):
        with reading.skipping(position):
            require_whole(item)
            number, name = key_member(item, "id"), "file_name" if "file_name" in item else "id"
            entry = ImageRow(position, file_of(item[name], name), None, [], number, number)
            rows.append(entry, repr(number))
            numbers.add(number)
    for place, (position, item) in enumerate(document.listed("annotations")):
        with reading.skipping(position):
            require_whole(item)
            number, texts = key_member(item, "image_id"), [member(item, "caption")]
            if number not in numbers:
                raise BadItem(f"caption of an unknown image: {number!r:.40}")
            if item.get("is_rejected") or item.get("is_precanned"):
                rejected.append(position)
                texts = []
            elif "id" in item:
                # one caption twice would count as two references
                if key_member(item, "id") in identities:
                    raise BadItem(f"duplicate id {item['id']!r}")
                if number_of(item["id"]) in document.repeated_ids:
                    identities.add(item["id"])
            rows.append(
                ImageRow(position, "", None, texts, item.get("id"), order=place), repr(number)
            )
    for group in rows.groups():
        if image := _image_of_coco(group, reading):
            rejected.clear()
            yield image
    for position in rejected:  # why there is no image
        reading.reject(position, "rejected: it says only that the image is bad")


def _image_of_coco(rows: Sequence[ImageRow], reading: Reading) -> ImageRow | None:
    """Return the image of an id, None if it is of several files or VizWiz rejects all captions.

    rows: its entries, then its captions without files, of which rejected ones have no text.
    """
    entries = [row for row in rows if row.file]
    captions = rows[len(entries) :]
    if len({row.file for row in entries}) > 1:  # nothing states whose the captions are
        both = " and ".join(repr(row.file) for row in entries[:2])
        for row in entries:
            reading.reject(row.position, f"duplicate id {row.key!r}, of {both}")
        return None
    usable = [row for row in captions if row.captions]
    if captions and not usable:
        return None
    order = min((row.order for row in usable), default=0)
    # the files of COCO are not in the order of ids
    usable.sort(key=lambda row: row.own_id if isinstance(row.own_id, int) else row.order)
    return entries[0]._replace(
        captions=[text for row in usable for text in row.captions], order=order
    )


def at(key: str) -> Callable[[Members, Reading], Iterable[ListedItem]]:
    """Return the carrier of the list at a key."""
    return lambda document, _: document.listed(key)


def lists(document: Members, reading: Reading) -> Iterator[ListedItem]:
    """Yield the records of lists by name; a name may be that of their split."""
    for key, place, values in document:
        if place is not None:
            has_split = split_of(key) and isinstance(values, dict)
            yield f"{key}[{place}]", {"split": key, **values} if has_split else values


def dictionary(document: Members, reading: Reading) -> Iterator[ListedItem]:
    """Yield the records of {image: captions}, or {image: record}."""
    for key, rows in groupby(document, key=itemgetter(0)):
        places, items = zip(*((place, item) for _, place, item in rows), strict=True)
        value = items[0] if places[0] is None else [*items]
        values = value if isinstance(value, dict) else {"captions": value}
        yield f"{key!r:.60}", {**values, reading.fields.image[0]: key}


def filled(lines: Iterable[ListedItem], reading: Reading) -> Iterator[ListedItem]:
    """Yield lines that are not blank."""
    return (line for line in lines if line[1].strip())


def json_line(position: str, line: str, fields: Fields) -> ImageRow:
    """Return the image of a line of JSON."""
    return raw_image(position, parse_json(line, where=position), fields)


def token_line(position: str, line: str, fields: Fields) -> ImageRow:
    """Return the image of a line of a token file, `image.jpg#0<tab>caption`."""
    match = TOKEN_LINE.fullmatch(line)
    if match is None:
        raise BadItem(f"not 'image.jpg#0<tab>caption': {line[:40]!r}")
    return raw_image(position, match.groupdict(), fields)


def textcaps(position: str, entry: object, fields: Fields) -> ImageRow:
    """Return the image of an entry of TextCaps, which is named by id."""
    fields = Fields(captions=["caption_str"], split=["set_name"])
    return raw_image(position, entry, fields, f"{text_member(entry, 'image_id')}.jpg")


def in_order(position: str, captions: object, fields: Fields, file: str = "") -> ImageRow:
    """Return the image of captions, or of one, by default one in the order of other files."""
    return ImageRow(position, file, None, captions_of({"captions": captions}, ["captions"]))


def text_file(position: str, text: Path, fields: Fields) -> ImageRow:
    """Return the image beside a text file, whose lines are its captions."""
    if not text.is_file():
        raise BadItem(f"no {text.name!r} beside the image")
    return in_order(position, _lines(read_text(text)), fields, position)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def source(path: Path, reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of tars, Parquet or Arrow files."""
    for container in open_source(str(path)).containers:
        if isinstance(container, Tar):
            yield from _tar_images(container, reading)
        elif isinstance(container, Table):
            yield from _table_images(container, reading)
        else:
            raise InputError(
                f"{container.name!r} contains no captions; name tars, Parquet files, or a file of "
                "captions on this machine"
            )


def _tar_images(tar: Tar, reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of a tar with the captions in KEY.json, else the lines of KEY.txt."""
    members = dict(tar.members(lambda name: PurePosixPath(name).suffix in (".txt", ".json")))
    images = {PurePosixPath(name).with_suffix(""): name for name in members if is_image(name)}
    for key, file in images.items():
        with reading.skipping(f"{file} in {tar.name}") as position:
            record, lines = members.get(f"{key}.json") or b"{}", members.get(f"{key}.txt", b"")
            if isinstance(record, InputError) or isinstance(lines, InputError):
                raise InputError(f"captions of {str(key)!r} are too large; shorten them")
            values = parse_json(decode_text(record, where=f"{key}.json"), where=f"{key}.json")
            if not isinstance(values, dict):
                raise BadItem(f"'{key}.json' is not a JSON object")
            names = reading.fields.captions
            if not has_captions(values, names) and (lines or not values):
                values["captions"] = _lines(decode_text(lines, where=f"{key}.txt"))
            yield raw_image(position, values, reading.fields, file)


def _table_images(table: Table, reading: Reading) -> Iterator[ImageRow]:
    """Yield the rows of a table; raise InputError if it has no column of captions."""
    fields = reading.fields
    captions = table.first_of(fields.captions) or sorted(filter(is_numbered, table.columns))
    if not captions:
        raise InputError(
            f"no column of captions in {table.name!r}, it has {', '.join(table.columns)}; "
            f"{NAME_CAPTION}"
        )
    for row, values in table.rows([*table.naming, *captions, *table.first_of(fields.split)]):
        with reading.skipping(f"row {row} in {table.name}") as position:
            file = f"{table.identity(row, values)}.jpg"
            yield raw_image(position, {"split": table.split, **values}, fields, file)


def first_of(value: object) -> Mapping[str, object]:
    """Return the first item of a list of objects, else an empty one."""
    first = value[0] if isinstance(value, list) and value else {}
    return first if isinstance(first, dict) else {}


def kind_of(document: Members, fields: Fields) -> str | None:
    """Return the form of a JSON object, None for another one, such as instances of COCO."""
    firsts = document.firsts
    images, annotations = firsts.get("images"), document.listed("annotations")
    has_texts = any(isinstance(item, dict) and "caption" in item for *_, item in annotations)
    records = map(first_of, firsts.values())
    has_records = any(first_value(record, fields.image) is not None for record in records)
    kinds = {
        "karpathy": isinstance(images, list) and "annotations" not in firsts,
        "coco": isinstance(images, list) and (has_texts or firsts.get("annotations") == []),
        "textcaps": "caption_str" in first_of(firsts.get("data")),
        "lists": "images" not in firsts and (has_records or all(map(split_of, firsts))),
        "dictionary": firsts.keys().isdisjoint(("images", "annotations")),
    }
    return next((kind for kind, matches in kinds.items() if firsts and matches), None)
