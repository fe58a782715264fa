"""Forms of annotations: what carries their records, recognised by content.

`LAYOUTS` is the list that messages, help and docs/guide/data.md name.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from a2cap.data.annotations import carriers
from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.json_items import keys_of
from a2cap.data.annotations.members import Members
from a2cap.data.annotations.record import (
    NAME_REFERENCES,
    REFERENCE_FIELDS,
    Fields,
    ListedItem,
    Reading,
    first_value,
    has_captions,
    raw_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import JsonObject, list_items, parse_json, text_blocks, text_lines
from a2cap.data.files.paths import require_file
from a2cap.data.image_ids import list_images
from a2cap.data.sources.open_source import is_source
from a2cap.data.sources.parquet import splits_of

_TABLES = (".csv", ".tsv", ".token")
_LINES = (".jsonl", ".ndjson")
_METADATA = ("metadata.jsonl", "metadata.csv")
DICTIONARY = "a JSON object {image: captions}"
"""Name of the form of a2's references.json."""


@dataclass(frozen=True)
class Layout:
    """A form of annotations.

    kind: its short name.
    read: returns the image of an item at a position.
    items: those of its content, or images that are complete.
    has_rows: True if an image may have several items.
    field: the only one that its captions can have, None if records name it.
    """

    name: str
    kind: str
    read: Callable[[str, Any, Fields], ImageRow] = raw_image
    items: Callable[[Any, Reading], Iterable[ListedItem | ImageRow]] = lambda content, _: content
    has_rows: bool = True
    field: str | None = None


def require_annotations(path: Path | None) -> Path:
    """Return data.annotations; raise as `require_file` does unless there is what it names."""
    if path is not None and (path.is_dir() or is_source(path)):
        return path  # the files of a source are required when it is opened
    return require_file(path, "data.annotations")


def read_raw(path: Path, reading: Reading) -> tuple[Layout, str, Iterator[ImageRow]]:
    """Return the layout of annotations, by their content, the name of the data, and the images.

    An image of several records comes several times. The name is "" in a file without one. Raises
    InputError if the layout is unknown.
    """
    kind, content, first = _opened(path, reading.fields)
    layout = next((layout for layout in LAYOUTS if layout.kind == kind), None)
    names = reading.fields.captions
    has_other = layout is not None and layout.field not in (None, *names)
    # captions are no references of themselves
    if {*names} <= {*REFERENCE_FIELDS} and (layout is None or has_other):
        raise InputError(f"no references in {str(path)!r}; {NAME_REFERENCES}")
    if layout is None:
        raise InputError(f"unknown layout: {str(path)!r} {_described(first)}; {GIVE_LAYOUT}")
    if has_other:
        raise InputError(
            f"no field {names[0]!r} in {str(path)!r}, read as {layout.name}; leave it out"
        )
    return layout, _dataset_of(first), _images(layout, content, reading)


def caption_files(folder: Path) -> dict[str, Path]:
    """Map names to the files with the captions of a folder: metadata, or texts beside images."""
    files = sorted(file for name in _METADATA for file in folder.rglob(name) if file.is_file())
    metadata = {file.relative_to(folder).as_posix(): file for file in files}
    shown = {place: file for place, file in metadata.items() if "/." not in f"/{place}"}
    return shown or {str(file): folder / file.with_suffix(".txt") for file in list_images(folder)}


def _opened(path: Path, fields: Fields) -> tuple[str | None, Any, Any]:
    """Return the form of a path, None for an unknown one, its content, and what tells its form.

    Items of lists and lines have their positions.
    """
    if is_source(path):
        return "source", path, path
    if path.is_dir():
        files = caption_files(path)
        is_metadata = any(file.name in _METADATA for file in files.values())
        return "metadata" if is_metadata else "texts", files.items(), path
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
        form, what = ("records", "entry") if isinstance(first, dict) else ("captions", "item")
        content = _numbered(chain(head, items), what)
        return form if isinstance(first, dict | list | str) else None, content, first
    if start == "{" and not name.endswith(_LINES):
        document = Members(lambda: JsonObject(text_blocks(path), where=where))
        first = document.firsts
        is_record = first_value(first, fields.image) and has_captions(first, fields.captions)
        if not (document.has_more or is_record):
            return carriers.kind_of(document, fields), document, first
        blocks, name = text_blocks(path), _LINES[0]
    lines = text_lines(blocks)
    first = next(lines, "")
    if name.endswith(".json"):
        parse_json("\n".join([first, *lines]), where=where)  # a number, or what is no JSON
        return None, "", first
    kind = None if name.endswith(_TABLES) else "text"
    kind = "tokens" if carriers.TOKEN_LINE.fullmatch(first) else kind
    kind = "table" if carriers.header_of(first, fields) else kind
    kind = "lines" if name.endswith(_LINES) else kind
    return kind, _numbered(chain([first], lines), "line"), first


def _numbered(items: Iterable[object], what: str) -> Iterator[ListedItem]:
    return ((f"{what} {number}", item) for number, item in enumerate(items, start=1))


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


def _images(layout: Layout, content: object, reading: Reading) -> Iterator[ImageRow]:
    for item in layout.items(content, reading):
        with reading.skipping(item[0]):
            yield item if isinstance(item, ImageRow) else layout.read(*item, reading.fields)


def _dataset_of(document: object) -> str:
    """Return the name of the data: "coco" in Karpathy's file, "COCO 2014 Dataset" in COCO's."""
    values = carriers.first_of([document])
    name = values.get("dataset") or carriers.first_of([values.get("info")]).get("description")
    return name if isinstance(name, str) else ""


def _imagefolder(files: Collection[ListedItem], reading: Reading) -> Iterator[ImageRow]:
    """Yield the images of an imagefolder, whose metadata name files of their own folder."""
    splits = splits_of([place for place, _ in files])
    for (place, file), split in zip(files, splits, strict=True):
        for image in read_raw(file, replace(reading, place=f"{place}, "))[-1]:
            own = split if image.split is None else image.split
            named = str(PurePosixPath(place).parent / image.file)
            yield image._replace(file=named, split=own, position=f"{place}, {image.position}")


LAYOUTS = (
    Layout("Karpathy's dataset_coco.json", "karpathy", items=carriers.at("images"), has_rows=False),
    Layout("COCO captions", "coco", items=carriers.coco, has_rows=False, field="caption"),
    Layout("TextCaps", "textcaps", carriers.textcaps, carriers.at("data"), field="caption_str"),
    Layout("JSON Lines of records", "lines", carriers.json_line, carriers.filled),
    Layout("a JSON list of records", "records"),
    Layout("a JSON object of lists of records", "lists", items=carriers.lists),
    Layout(DICTIONARY, "dictionary", items=carriers.dictionary),
    Layout("CSV or TSV", "table", items=carriers.csv_rows),
    Layout("a Flickr token file", "tokens", carriers.token_line, carriers.filled),
    Layout("a folder with a text beside each image", "texts", carriers.text_file, field="captions"),
    Layout("an imagefolder with metadata", "metadata", items=_imagefolder),
    Layout("tars, Parquet or Arrow files", "source", items=carriers.source),
    Layout("a JSON list of captions", "captions", carriers.in_order, field="captions"),
    Layout("lines of text", "text", carriers.in_order, field="captions"),
)
"""All forms, in the order of docs/guide/data.md."""
GIVE_LAYOUT = f"give one of: {', '.join(layout.name for layout in LAYOUTS)}"
