"""Forms of annotations: what carries their records, recognised by content.

`LAYOUTS` is the list that messages, help and docs/guide/data.md name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from sys import intern
from typing import Any

from a2cap.data.annotations.carriers import (
    csv_records,
    header_of,
    is_token_file,
    table_images,
    tar_images,
    token_records,
)
from a2cap.data.annotations.json_items import BadItem, key_member, member
from a2cap.data.annotations.record import (
    Fields,
    RawImage,
    Reading,
    Record,
    Skip,
    caption_field,
    captions_of,
    file_of,
    first_value,
    raw_image,
)
from a2cap.data.annotations.split_list import split_of
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import list_items, parse_first, parse_json, read_text
from a2cap.data.files.paths import require_file
from a2cap.data.identities import Key
from a2cap.data.image_ids import list_images
from a2cap.data.sources.open_source import is_source, open_source
from a2cap.data.sources.parquet import Table, splits_of
from a2cap.data.sources.tar import Tar

_TABLES = (".csv", ".tsv", ".token")
_METADATA = ("metadata.jsonl", "metadata.csv")


@dataclass(frozen=True)
class Layout:
    """A form of annotations.

    records: those of the content, or images that are complete. matches: True for content of this
    form; of a JSON list, its first item. has_rows: an image may have several records.
    """

    name: str
    records: Callable[[Any, Reading], Iterable[Record | RawImage]]
    matches: Callable[[Any, Fields], object] = lambda *_: True
    has_rows: bool = True


@dataclass(frozen=True)
class RawAnnotations:
    """Images of annotations before they are checked. has_splits: an image of them names a split.

    layout: name of the form. dataset: name of the data in the file, "" if none.
    """

    layout: str
    images: Iterable[RawImage]
    has_splits: bool
    dataset: str = ""


def require_annotations(path: Path | None) -> Path:
    """Return data.annotations; raise as `require_file` does unless there is what it names."""
    if path is not None and (path.is_dir() or is_source(path)):
        return path  # the files of a source are required when it is opened
    return require_file(path, "data.annotations")


def read_raw(path: Path, skip: Skip, fields: Fields) -> RawAnnotations:
    """Return the images of annotations in order; the content determines their layout.

    Raises InputError if the layout is unknown.
    """
    reading = Reading(fields, skip)
    content: Any = path
    if is_source(path):
        layout = _SOURCE
    elif path.is_dir():
        layout = _IMAGEFOLDER if metadata_files(path) else _SIDECARS
    else:
        layout, content = _of_text(read_text(path), path, fields)
    dataset = _dataset_of(content) if isinstance(content, dict) else ""
    images = _images(layout.records(content, reading), reading)
    if layout.has_rows:
        grouped = _grouped(images, skip)
        has_splits = any(image.split is not None for image in grouped)
        return RawAnnotations(layout.name, grouped, has_splits, dataset)
    # of large files, whose images are not held together
    items = content["images"] if layout is _KARPATHY else ()
    objects = (item for item in items if isinstance(item, dict))
    has_splits = any(first_value(item, fields.split) is not None for item in objects)
    return RawAnnotations(layout.name, images, has_splits, dataset)


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


def _of_text(text: str, path: Path, fields: Fields) -> tuple[Layout, Any]:
    """Return the layout of a file and its content: a text, a JSON object, or items of a list."""
    where, name = repr(str(path)), path.name.removesuffix(".gz")
    first: Any = text
    content: Any = text
    layouts: Sequence[Layout]
    if name.endswith((".jsonl", ".ndjson")):
        return _JSON_LINES, text
    if text[:99].lstrip()[:1] == "[":
        items = list_items(text, where=where)
        first = next(items, {})
        layouts, content = _OF_LISTS, chain([first] if first else [], items)
    elif text[:99].lstrip()[:1] == "{":
        first, has_more = parse_first(text, where=where, convert=_share_tokens)
        if has_more or (first_value(first, fields.image) and caption_field(first, fields.captions)):
            return _JSON_LINES, text
        layouts, content = _OF_OBJECTS, first
    elif name.endswith(".json"):
        parse_json(text, where=where)  # a number, or what is no JSON
        layouts = ()
    else:
        layouts = _OF_TABLES if name.endswith(_TABLES) else (*_OF_TABLES, _LINES)
    for layout in layouts:
        if layout.matches(first, fields):
            return layout, content
    raise InputError(f"unknown layout: {where} {_described(first)}; {GIVE_LAYOUT}")


def _described(content: object) -> str:
    """Return what a file of unknown layout has, for a message."""
    if isinstance(content, str):
        line = content.partition("\n")[0][:60]
        return f"has the first line {line!r}; name columns image and caption, or set data.fields"
    if isinstance(content, dict):
        keys = ", ".join(f"{key!r:.30}" for key in list(content)[:8])
        return f"is a JSON object of {keys or 'nothing'}"
    return f"is a JSON list of {content!r:.60}"


def _images(records: Iterable[Record | RawImage], reading: Reading) -> Iterator[RawImage]:
    for record in records:
        if isinstance(record, RawImage):
            yield record
            continue
        with reading.skipping(record.position):
            yield raw_image(record, reading.fields)


def _grouped(images: Iterable[RawImage], skip: Skip) -> list[RawImage]:
    """Return one image for all records of a file, with the captions of each."""
    grouped: dict[object, tuple[RawImage, list[object]]] = {}
    for image in images:
        # captions without images are in the order of other files
        key = image.file or image.position
        first, captions = grouped.setdefault(key, (image, []))
        if first.split == image.split:
            captions.extend(image.captions)
        else:
            skip(image.position, f"split {image.split!r}, {first.split!r} in {first.position}")
    return [replace(image, captions=captions) for image, captions in grouped.values()]


def _dataset_of(document: Mapping[str, object]) -> str:
    """Return the name of the data: "coco" in Karpathy's file, "COCO 2014 Dataset" in COCO's."""
    info = document.get("info")
    name = document.get("dataset") or (info.get("description") if isinstance(info, dict) else None)
    return name if isinstance(name, str) else ""


def _share_tokens(item: dict[str, object]) -> dict[str, object]:
    # six million tokens of COCO are 40,000 different strings: a third of the memory
    tokens = item.get("tokens")
    if isinstance(tokens, list):
        item["tokens"] = [intern(word) if isinstance(word, str) else word for word in tokens]
    return item


def _listed(items: list[object], key: str) -> Iterator[Record]:
    for index, item in enumerate(items):
        items[index] = None  # one image at a time is in memory twice, not all of them
        yield Record(f"{key}[{index}]", item)


def _textcaps(document: Any, reading: Reading) -> Iterator[RawImage]:
    fields = Fields(image=["image_id"], captions=["caption_str"], split=["set_name"])
    images = _images(_listed(document["data"], "data"), replace(reading, fields=fields))
    return (replace(image, file=f"{image.file}.jpg", own_id=None) for image in images)


def _coco(document: Any, reading: Reading) -> Iterator[RawImage]:
    """Yield the images of COCO with their captions in the order of ids, as `COCO` has them."""
    files: dict[Key, list[tuple[str, str]]] = {}
    captions: dict[Key, list[tuple[int, object]]] = {}
    orders: dict[Key, int] = {}
    for index, item in enumerate(document["images"]):
        with reading.skipping(f"images[{index}]") as position:
            number = key_member(item, "id")
            name = "file_name" if "file_name" in item else "id"
            file = file_of(item[name], name)
            files.setdefault(number, []).append((position, file))
            captions[number] = []
    seen: set[Key] = set()
    rejected: set[Key] = set()
    for index, item in enumerate(document["annotations"]):
        with reading.skipping(f"annotations[{index}]"):
            number, caption = key_member(item, "image_id"), member(item, "caption")
            if number not in files:
                raise BadItem(f"caption of an unknown image: {number!r:.40}")
            # VizWiz: captions that say only that the image is bad
            if item.get("is_rejected") or item.get("is_precanned"):
                rejected.add(number)
                continue
            # one caption twice would count as two references
            identity = key_member(item, "id") if "id" in item else None
            if identity is not None:
                if identity in seen:
                    raise BadItem(f"duplicate id {identity!r}")
                seen.add(identity)
            orders.setdefault(number, index)
            captions[number].append((identity if isinstance(identity, int) else index, caption))
    for number, named in files.items():
        if len({file for _, file in named}) > 1:  # nothing states whose the captions are
            both = " and ".join(repr(file) for _, file in named[:2])
            for position, _ in named:
                reading.skip(position, f"duplicate id {number!r}, of {both}")
            continue
        if number in rejected and not captions[number]:
            continue
        # the files of COCO are not in the order of ids
        texts = [caption for _, caption in sorted(captions[number], key=lambda pair: pair[0])]
        position, file = named[0]
        yield RawImage(position, file, None, texts, number, number, orders.get(number, 0))


def _objects_by_key(document: Mapping[str, object], reading: Reading) -> Iterator[Record]:
    """Yield the records of lists by name; a name may be that of their split."""
    for key, items in document.items():
        for record in _listed(items, key) if isinstance(items, list) else ():
            values = record.values
            if split_of(key) and isinstance(values, dict):
                values = {"split": key, **values}
            yield Record(record.position, values)


def _dictionary(document: Mapping[str, object], reading: Reading) -> Iterator[RawImage]:
    for key, value in document.items():
        with reading.skipping(f"{key!r:.60}") as position:
            values = value if isinstance(value, dict) else {"captions": value}
            image = raw_image(Record(position, values), reading.fields, file_of(key, "key"))
            yield replace(image, key=key)


def _json_lines(text: str, reading: Reading) -> Iterator[Record]:
    # not splitlines(): it also splits at U+2028, which JSON strings may contain
    for number, line in enumerate(text.split("\n"), start=1):
        with reading.skipping(f"line {number}") as position:
            if line.strip():
                yield Record(position, parse_json(line, where=position))


def _in_order(items: Iterable[object], reading: Reading) -> Iterator[RawImage]:
    """Yield captions, or lists of them, that are in the order of other files."""
    for number, item in enumerate(items, start=1):
        with reading.skipping(f"item {number}") as position:
            yield RawImage(position, "", None, captions_of({"captions": item}, ["captions"]))


def _text_lines(text: str, reading: Reading) -> Iterator[RawImage]:
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):  # a caption may contain U+2028
        yield RawImage(f"line {number}", "", None, [line.rstrip("\r")])


def _folder(folder: Path, reading: Reading) -> Iterator[RawImage]:
    """Yield each image below a folder with the lines of the text file beside it as captions."""
    for image in list_images(folder):
        with reading.skipping(image.as_posix()) as position:
            text = folder / image.with_suffix(".txt")
            if not text.is_file():
                raise BadItem(f"no {text.name!r} beside the image")
            captions = [line for line in read_text(text).splitlines() if line.strip()]
            yield RawImage(position, image.as_posix(), None, captions)


def _imagefolder(folder: Path, reading: Reading) -> Iterator[RawImage]:
    """Yield the images of an imagefolder, whose metadata name files of their own folder."""
    files = metadata_files(folder)
    places = [file.relative_to(folder).as_posix() for file in files]
    for file, place, split in zip(files, places, splits_of(places), strict=True):
        below = PurePosixPath(place).parent

        def skip_here(position: str, reason: str, place: str = place) -> None:
            reading.skip(f"{place}, {position}", reason)

        for image in read_raw(file, skip_here, reading.fields).images:
            own = split if image.split is None else image.split
            position = f"{place}, {image.position}"
            yield replace(image, file=str(below / image.file), split=own, position=position)


def _source(path: Path, reading: Reading) -> Iterator[RawImage]:
    for container in open_source(str(path)).containers:
        if isinstance(container, Tar):
            yield from tar_images(container, reading)
        elif isinstance(container, Table):
            yield from table_images(container, reading)
        else:
            raise InputError(
                f"{container.name!r} contains no captions; name tars, Parquet files, or a file of "
                "captions on this machine"
            )


def _records_in(items: Iterable[object], reading: Reading) -> Iterator[Record]:
    return (Record(f"entry {number}", item) for number, item in enumerate(items, start=1))


def _first(value: object) -> Mapping[str, object]:
    """Return the first item of a list of objects, else an empty one."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


def _is_coco(document: Any, fields: Fields) -> bool:
    images, annotations = document.get("images"), document.get("annotations")
    if not isinstance(images, list) or not isinstance(annotations, list):
        return False
    texts = (item for item in annotations if isinstance(item, dict) and "caption" in item)
    return not annotations or any(texts)


def _is_karpathy(document: Any, fields: Fields) -> bool:
    return isinstance(document.get("images"), list) and "annotations" not in document


def _is_objects_by_key(document: Any, fields: Fields) -> bool:
    firsts = (first_value(_first(items), fields.image) for items in document.values())
    return "images" not in document and any(first is not None for first in firsts)


_COCO = Layout("COCO captions", _coco, _is_coco, has_rows=False)
_KARPATHY = Layout(
    "Karpathy's dataset_coco.json",
    lambda document, _: _listed(document["images"], "images"),
    _is_karpathy,
    has_rows=False,
)
DICTIONARY = Layout(
    "a JSON object {image: captions}",
    _dictionary,
    lambda document, _: document and document.keys().isdisjoint(("images", "annotations")),
)
_OF_OBJECTS = (
    Layout("TextCaps", _textcaps, lambda item, _: "caption_str" in _first(item.get("data"))),
    _COCO,
    _KARPATHY,
    Layout("a JSON object of lists of records", _objects_by_key, _is_objects_by_key),
    DICTIONARY,
)
_OF_LISTS = (
    Layout("a JSON list of records", _records_in, lambda item, _: isinstance(item, dict)),
    Layout("a JSON list of captions", _in_order, lambda item, _: isinstance(item, str | list)),
)
_JSON_LINES = Layout("JSON Lines of records", _json_lines)
_OF_TABLES = (
    Layout("a Flickr token file", token_records, is_token_file),
    Layout("CSV or TSV", csv_records, header_of),
)
_LINES = Layout("lines of text", _text_lines)
_SIDECARS = Layout("a folder with a text beside each image", _folder)
_IMAGEFOLDER = Layout("an imagefolder with metadata", _imagefolder)
_SOURCE = Layout("tars, Parquet or Arrow files", _source)

LAYOUTS = (
    *(_KARPATHY, _COCO, _OF_OBJECTS[0], _JSON_LINES, _OF_LISTS[0], _OF_OBJECTS[3], DICTIONARY),
    *(*reversed(_OF_TABLES), _SIDECARS, _IMAGEFOLDER, _SOURCE, _OF_LISTS[1], _LINES),
)
"""All forms, in the order of docs/guide/data.md."""
GIVE_LAYOUT = f"give one of: {', '.join(layout.name for layout in LAYOUTS)}"
