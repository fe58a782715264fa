"""Forms of annotations: what carries their records, recognised by content.

`LAYOUTS` is the list that messages, help and docs/guide/data.md name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from a2cap.data.annotations import carriers
from a2cap.data.annotations.json_items import BadItem, keys_of
from a2cap.data.annotations.record import (
    NAME_CAPTION,
    Fields,
    RawImage,
    Reading,
    Record,
    first_value,
    has_captions,
    is_numbered,
    raw_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import (
    decode_text,
    list_items,
    parse_first,
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
_METADATA = ("metadata.jsonl", "metadata.csv")
DICTIONARY = "a JSON object {image: captions}"
"""Name of the form of a2's references.json."""
_Kind = Literal["object", "list", "lines", "table", "text", "folder", "source"]


@dataclass(frozen=True)
class Layout:
    """A form of annotations.

    kind: what its content is: a JSON object, the items of a JSON list, a text, a folder, or the
    name of a source. records: those of the content, or images that are complete. matches: True for
    content of this form; of a JSON list, its first item. has_rows: an image may have several.
    """

    name: str
    kind: _Kind
    records: Callable[[Any, Reading], Iterable[Record | RawImage]]
    matches: Callable[[Any, Fields], object] = lambda *_: True
    has_rows: bool = True


@dataclass(frozen=True)
class RawAnnotations:
    """Images of annotations before they are checked; dataset: name in the file, "" if none."""

    layout: Layout
    images: Iterator[RawImage]
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
    kinds, content, first = _opened(path, reading.fields)
    for layout in LAYOUTS:
        if layout.kind in kinds and layout.matches(first, reading.fields):
            dataset = _dataset_of(content) if isinstance(content, dict) else ""
            return RawAnnotations(
                layout, _images(layout.records(content, reading), reading), dataset
            )
    raise InputError(f"unknown layout: {str(path)!r} {_described(first)}; {GIVE_LAYOUT}")


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


def _opened(path: Path, fields: Fields) -> tuple[tuple[_Kind, ...], Any, Any]:
    """Return what the content of a path may be, the content, and what tells its layout."""
    if is_source(path) or path.is_dir():
        return ("source",) if is_source(path) else ("folder",), path, path
    where, name = repr(str(path)), path.name.removesuffix(".gz")
    blocks = text_blocks(path)  # lists and lines are not in memory whole
    begin = next(blocks)
    start, blocks = begin.lstrip()[:1], chain([begin], blocks)
    if start == "[":
        items = list_items(blocks, where=where)
        head = [*islice(items, 1)]
        return ("list",), chain(head, items), head[0] if head else {}
    is_lines = name.endswith((".jsonl", ".ndjson"))
    if start == "{" and not is_lines:
        first, has_more = parse_first("".join(blocks), where=where, convert=carriers.share_tokens)
        is_record = first_value(first, fields.image) and has_captions(first, fields.captions)
        if not (has_more or is_record):
            return ("object",), first, first
        blocks = text_blocks(path)
    if is_lines or start == "{":
        return ("lines",), text_lines(blocks), ""
    lines = text_lines(blocks)
    first = next(lines, "")
    if name.endswith(".json"):
        parse_json("\n".join([first, *lines]), where=where)  # a number, or what is no JSON
        return (), "", first
    return ("table",) if name.endswith(_TABLES) else ("table", "text"), chain([first], lines), first


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


def _images(records: Iterable[Record | RawImage], reading: Reading) -> Iterator[RawImage]:
    for record in records:
        if isinstance(record, RawImage):
            yield record
            continue
        with reading.skipping(record[0]):
            yield raw_image(record, reading.fields)


def _dataset_of(document: Mapping[str, object]) -> str:
    """Return the name of the data: "coco" in Karpathy's file, "COCO 2014 Dataset" in COCO's."""
    info = document.get("info")
    name = document.get("dataset") or (info.get("description") if isinstance(info, dict) else None)
    return name if isinstance(name, str) else ""


def _texts_beside(folder: Path, reading: Reading) -> Iterator[RawImage]:
    """Yield each image below a folder with the lines of the text file beside it as captions."""
    for image in list_images(folder):
        with reading.skipping(image.as_posix()) as position:
            text = folder / image.with_suffix(".txt")
            if not text.is_file():
                raise BadItem(f"no {text.name!r} beside the image")
            captions = [line for line in read_text(text).splitlines() if line.strip()]
            yield RawImage(position, position, None, captions)


def _imagefolder(folder: Path, reading: Reading) -> Iterator[RawImage]:
    """Yield the images of an imagefolder, whose metadata name files of their own folder."""
    files = metadata_files(folder)
    places = [file.relative_to(folder).as_posix() for file in files]
    for file, place, split in zip(files, places, splits_of(places), strict=True):

        def skip_here(position: str, reason: str, place: str = place) -> None:
            reading.skip(f"{place}, {position}", reason)

        for image in read_raw(file, replace(reading, skip=skip_here)).images:
            own = split if image.split is None else image.split
            named = str(PurePosixPath(place).parent / image.file)
            yield replace(image, file=named, split=own, position=f"{place}, {image.position}")


def _source(path: Path, reading: Reading) -> Iterator[RawImage]:
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


def _tar_images(tar: Tar, reading: Reading) -> Iterator[RawImage]:
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
                text = decode_text(lines, where=f"{key}.txt")
                values[names[0]] = [line for line in text.splitlines() if line.strip()]
            yield raw_image((position, values), reading.fields, file)


def _table_images(table: Table, reading: Reading) -> Iterator[RawImage]:
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
    Layout(
        "Karpathy's dataset_coco.json",
        "object",
        carriers.karpathy,
        carriers.is_karpathy,
        has_rows=False,
    ),
    Layout("COCO captions", "object", carriers.coco, carriers.is_coco, has_rows=False),
    Layout(
        "TextCaps",
        "object",
        carriers.textcaps,
        lambda item, _: "caption_str" in carriers.first_of(item.get("data")),
    ),
    Layout("JSON Lines of records", "lines", carriers.json_lines),
    Layout(
        "a JSON list of records",
        "list",
        carriers.listed_records,
        lambda item, _: isinstance(item, dict),
    ),
    Layout(
        "a JSON object of lists of records",
        "object",
        carriers.objects_by_key,
        carriers.is_objects_by_key,
    ),
    Layout(
        DICTIONARY,
        "object",
        carriers.dictionary,
        lambda document, _: document and document.keys().isdisjoint(("images", "annotations")),
    ),
    Layout("CSV or TSV", "table", carriers.csv_records, carriers.header_of),
    Layout("a Flickr token file", "table", carriers.token_records, carriers.is_token_file),
    Layout(
        "a folder with a text beside each image",
        "folder",
        _texts_beside,
        lambda folder, _: not metadata_files(folder),
    ),
    Layout("an imagefolder with metadata", "folder", _imagefolder),
    Layout("tars, Parquet or Arrow files", "source", _source),
    Layout(
        "a JSON list of captions",
        "list",
        carriers.in_order,
        lambda item, _: isinstance(item, str | list),
    ),
    Layout("lines of text", "text", partial(carriers.in_order, what="line")),
)
"""All forms, in the order of docs/guide/data.md; of those that match, the first is read."""
GIVE_LAYOUT = f"give one of: {', '.join(layout.name for layout in LAYOUTS)}"
