"""Forms of annotations: what carries their records, recognised by content.

`LAYOUTS` is the list that messages, help and docs/guide/data.md name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from a2cap.data.annotations import carriers
from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.json_items import BadItem, keys_of
from a2cap.data.annotations.members import Members
from a2cap.data.annotations.record import (
    NAME_CAPTION,
    Fields,
    Reading,
    Record,
    captions_of,
    first_value,
    has_captions,
    is_numbered,
    raw_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import (
    JsonObject,
    decode_text,
    list_items,
    parse_json,
    read_text,
    text_blocks,
    text_lines,
)
from a2cap.data.files.paths import require_file
from a2cap.data.image_ids import list_images
from a2cap.data.sources.open_source import is_source, open_source
from a2cap.data.sources.parquet import Table, splits_of
from a2cap.data.sources.tar import Tar, is_image

_TABLES = (".csv", ".tsv", ".token")
_LINES = (".jsonl", ".ndjson")
_METADATA = ("metadata.jsonl", "metadata.csv")
DICTIONARY = "a JSON object {image: captions}"
"""Name of the form of a2's references.json."""


@dataclass(frozen=True)
class Layout:
    """A form of annotations.

    kind: its short name. records: those of its content, or images that are complete.
    """

    name: str
    kind: str
    records: Callable[[Any, Reading], Iterable[Record | ImageRow]]

    @property
    def has_rows(self) -> bool:
        """True if an image may have several records."""
        return self.kind not in ("karpathy", "coco")


@dataclass(frozen=True)
class RawAnnotations:
    """Images of annotations before they are checked; dataset: name in the file, "" if none."""

    layout: Layout
    images: Iterator[ImageRow]
    dataset: str = ""


def require_annotations(path: Path | None) -> Path:
    """Return data.annotations; raise as `require_file` does unless there is what it names."""
    if path is not None and (path.is_dir() or is_source(path)):
        return path  # the files of a source are required when it is opened
    return require_file(path, "data.annotations")


def read_raw(path: Path, reading: Reading) -> RawAnnotations:
    """Return the images of annotations in order; the content determines their layout.

    An image of several records comes several times. Raises InputError if the layout is unknown.
    """
    kind, content, first = _opened(path, reading.fields)
    layout = next((layout for layout in LAYOUTS if layout.kind == kind), None)
    if layout is None:
        raise InputError(f"unknown layout: {str(path)!r} {_described(first)}; {GIVE_LAYOUT}")
    dataset = _dataset_of(first) if isinstance(first, dict) else ""
    return RawAnnotations(layout, _images(layout.records(content, reading), reading), dataset)


def metadata_files(folder: Path) -> list[Path]:
    """Return each metadata.jsonl and metadata.csv below a folder, sorted; hidden ones count not."""
    paths = (path for name in _METADATA for path in folder.rglob(name) if path.is_file())
    return sorted(
        p for p in paths if not any(part[0] == "." for part in p.relative_to(folder).parts)
    )


def caption_files(folder: Path) -> dict[str, Path]:
    """Map names to the files with the captions of a folder: metadata, or texts beside images."""
    metadata = metadata_files(folder)
    if metadata:
        return {file.relative_to(folder).as_posix(): file for file in metadata}
    return {str(file): folder / file.with_suffix(".txt") for file in list_images(folder)}


def _opened(path: Path, fields: Fields) -> tuple[str | None, Any, Any]:
    """Return the form of a path, None for an unknown one, its content, and what tells its form."""
    if is_source(path):
        return "source", path, path
    if path.is_dir():
        return "metadata" if metadata_files(path) else "texts", path, path
    where, name = repr(str(path)), path.name.removesuffix(".gz")
    if path.exists() and not path.is_file():  # a pipe ends with the first reading
        raise InputError(f"not a regular file: {where}, which is read twice; write it to a file")
    blocks = text_blocks(path)  # lists and lines are not in memory whole
    begin = next(blocks)
    start, blocks = begin.lstrip()[:1], chain([begin], blocks)
    if start == "[":
        items = list_items(blocks, where=where)
        head = [*islice(items, 1)]
        first = head[0] if head else {}
        kinds: dict[type, str] = {dict: "records", str: "captions", list: "captions"}
        return kinds.get(type(first)), chain(head, items), first
    if start == "{" and not name.endswith(_LINES):
        document = Members(lambda: JsonObject(text_blocks(path), where=where))
        first = document.firsts
        is_record = first_value(first, fields.image) and has_captions(first, fields.captions)
        if not (document.has_more or is_record):
            return carriers.kind_of(document, fields), document, first
        blocks, name = text_blocks(path), _LINES[0]
    return _opened_lines(name, text_lines(blocks), fields, where)


def _opened_lines(
    name: str, lines: Iterator[str], fields: Fields, where: str
) -> tuple[str | None, Any, Any]:
    """Return what `_opened` does, of the lines of a text."""
    if name.endswith(_LINES):
        return "lines", lines, ""
    first = next(lines, "")
    if name.endswith(".json"):
        parse_json("\n".join([first, *lines]), where=where)  # a number, or what is no JSON
        return None, "", first
    kind = "tokens" if carriers.is_token_line(first) else None if name.endswith(_TABLES) else "text"
    return "table" if carriers.header_of(first, fields) else kind, chain([first], lines), first


def _described(content: object) -> str:
    """Return what a file of unknown layout has, for a message."""
    if isinstance(content, str):
        remedy = "name columns image and caption, or set data.fields"
        return f"has the first line {content[:60]!r}; {remedy}"
    if isinstance(content, dict):
        lists = {key: keys_of(carriers.first_of(items)) for key, items in content.items()}
        records = [f"; the first of {key!r:.30} has {keys}" for key, keys in lists.items() if keys]
        return f"is a JSON object of {keys_of(content) or 'nothing'}{''.join(records[:3])}"
    return f"is a JSON list of {content!r:.60}"


def _images(records: Iterable[Record | ImageRow], reading: Reading) -> Iterator[ImageRow]:
    for record in records:
        if isinstance(record, ImageRow):
            yield record
            continue
        with reading.skipping(record[0]):
            yield raw_image(record, reading.fields)


def _dataset_of(document: Mapping[str, object]) -> str:
    """Return the name of the data: "coco" in Karpathy's file, "COCO 2014 Dataset" in COCO's."""
    info = document.get("info")
    name = document.get("dataset") or (info.get("description") if isinstance(info, dict) else None)
    return name if isinstance(name, str) else ""


def _texts_beside(folder: Path, reading: Reading) -> Iterator[ImageRow]:
    """Yield each image below a folder with the lines of the text file beside it as captions."""
    for image in list_images(folder):
        with reading.skipping(image.as_posix()) as position:
            text = folder / image.with_suffix(".txt")
            if not text.is_file():
                raise BadItem(f"no {text.name!r} beside the image")
            captions = captions_of({"captions": _lines(read_text(text))}, ["captions"])
            yield ImageRow(position, position, None, captions)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _imagefolder(folder: Path, reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of an imagefolder, whose metadata name files of their own folder."""
    files = metadata_files(folder)
    places = [file.relative_to(folder).as_posix() for file in files]
    for file, place, split in zip(files, places, splits_of(places), strict=True):

        def skip_here(position: str, reason: str, place: str = place) -> None:
            reading.skip(f"{place}, {position}", reason)

        for image in read_raw(file, replace(reading, skip=skip_here)).images:
            own = split if image.split is None else image.split
            named = str(PurePosixPath(place).parent / image.file)
            position = f"{place}, {image.position}"
            yield image._replace(file=named, split=own, position=position)


def _source(path: Path, reading: Reading) -> Iterator[ImageRow]:
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
            if not has_captions(values, names) and (lines or not values):
                values[names[0]] = _lines(decode_text(lines, where=f"{key}.txt"))
            yield raw_image((position, values), reading.fields, file)


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
            record = position, {"split": table.split, **values}
            yield raw_image(record, fields, f"{table.identity(row, values)}.jpg")


LAYOUTS = (
    Layout("Karpathy's dataset_coco.json", "karpathy", carriers.karpathy),
    Layout("COCO captions", "coco", carriers.coco),
    Layout("TextCaps", "textcaps", carriers.textcaps),
    Layout("JSON Lines of records", "lines", carriers.json_lines),
    Layout("a JSON list of records", "records", carriers.listed_records),
    Layout("a JSON object of lists of records", "lists", carriers.lists),
    Layout(DICTIONARY, "dictionary", carriers.dictionary),
    Layout("CSV or TSV", "table", carriers.csv_records),
    Layout("a Flickr token file", "tokens", carriers.token_records),
    Layout("a folder with a text beside each image", "texts", _texts_beside),
    Layout("an imagefolder with metadata", "metadata", _imagefolder),
    Layout("tars, Parquet or Arrow files", "source", _source),
    Layout("a JSON list of captions", "captions", carriers.in_order),
    Layout("lines of text", "text", partial(carriers.in_order, what="line")),
)
"""All forms, in the order of docs/guide/data.md."""
GIVE_LAYOUT = f"give one of: {', '.join(layout.name for layout in LAYOUTS)}"
