"""Layouts of caption annotations, each read into the same unchecked items.

- Karpathy's `dataset_coco.json` (Karpathy and Fei-Fei 2015, arXiv:1412.2306), also without folders;
- COCO captions (`images` and `annotations`), also of nocaps and VizWiz, and TextCaps (`data`);
- `captions.jsonl`, one `{"image": "a/b.jpg", "captions": ["…"], "split": "train"}` per line;
- the text files of `tables`, and a folder with a text file beside each image;
- an `imagefolder` of `datasets`: `metadata.jsonl` or `metadata.csv` with `file_name` and a caption;
- the tars, Parquet and Arrow files of `source_captions`.

Layouts that do not name the splits need a split list or a random split.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePosixPath
from sys import intern

from a2cap.data.annotations.json_items import BadItem, key_member, list_member, member, text_member
from a2cap.data.annotations.raw_image import RawImage, Skip, skipping
from a2cap.data.annotations.source_captions import captions_of, read_source
from a2cap.data.annotations.split_list import random_splits, read_split_list
from a2cap.data.annotations.tables import SUFFIXES, metadata_files, read_folder, read_table
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json, read_text
from a2cap.data.files.paths import require_file
from a2cap.data.image_ids import IdRule, image_id
from a2cap.data.sources.open_source import is_source
from a2cap.data.sources.parquet import splits_of

IN_NO_SPLIT = "in no split"
"""Reason of a skip that the user chose; it does not count as a fault of the file."""

LAYOUTS = "give a Karpathy file (dataset_coco.json), COCO captions, or a captions.jsonl"

# COCO and Karpathy files start with other keys
_FIRST_JSONL_KEY = re.compile(r'\s*\{\s*"(?:image|captions|split)"\s*:')


def require_annotations(path: Path | None) -> Path:
    """Return data.annotations; raise as `require_file` does unless there is what it names."""
    if path is not None and (path.is_dir() or is_source(path)):
        return path  # the files of a source are required when it is opened
    return require_file(path, "data.annotations")


def read_items(
    path: Path,
    split_list: Path | None,
    skip: Skip,
    *,
    split: str | None = None,
    rule: IdRule = "number",
) -> Iterator[RawImage]:
    """Yield the images of annotations in order; the content determines their layout.

    split: as for `random_splits`. Raises InputError if the layout is unknown, if neither
    `split_list` nor `split` is given for a layout without splits, or if one is for another layout.
    """
    name = repr(str(path))
    items, has_splits = _read_layout(path, name, skip)
    if not has_splits:
        return _with_splits(items, name, split_list, split, skip, rule)
    if split_list is not None or split is not None:
        given = "data.split_list" if split_list is not None else "data.split"
        raise InputError(f"{name} already names the splits; remove {given}")
    return iter(items)


def _read_layout(path: Path, name: str, skip: Skip) -> tuple[Iterable[RawImage], bool]:
    """Return the images, and True if the layout names the splits."""
    if is_source(path):
        inside = list(read_source(path, skip))
        return inside, _has_splits(inside)
    if path.is_dir():
        files = metadata_files(path)
        inside = list(_folder_items(path, files, skip) if files else read_folder(path, skip))
        return inside, _has_splits(inside)
    text = read_text(path)
    file_name = path.name.removesuffix(".gz")
    if file_name.endswith(".jsonl") or _FIRST_JSONL_KEY.match(text):
        lines = list(_jsonl_items(text, skip))
        return lines, not lines or _has_splits(lines)
    if file_name.endswith(SUFFIXES):
        return read_table(text, name, skip)
    document = parse_json(text, where=name, convert=_share_tokens)
    items, has_splits = _document_items(document, name, skip)
    dataset = _dataset_of(document)
    return (replace(item, dataset=dataset) for item in items), has_splits


def _has_splits(items: Iterable[RawImage]) -> bool:
    return any(item.split is not None for item in items)


def _folder_items(folder: Path, files: Sequence[Path], skip: Skip) -> Iterator[RawImage]:
    """Yield the images of an imagefolder, whose metadata name files of their own folder."""
    places = [file.relative_to(folder).as_posix() for file in files]
    for file, place, split in zip(files, places, splits_of(places), strict=True):
        below = PurePosixPath(place).parent

        def skip_here(position: str, reason: str, place: str = place) -> None:
            skip(f"{place}, {position}", reason)

        items, _ = _read_layout(file, repr(str(file)), skip_here)
        for item in items:
            own = split if item.split is None else item.split
            position = f"{place}, {item.position}"
            yield replace(item, file=str(below / item.file), split=own, position=position)


def _document_items(document: object, name: str, skip: Skip) -> tuple[Iterable[RawImage], bool]:
    if isinstance(document, dict) and "data" in document:
        return _textcaps_items(_list_of(document, "data", name), skip), True
    images = _list_of(document, "images", name)
    if isinstance(document, dict) and "annotations" in document:
        return _coco_items(name, images, _list_of(document, "annotations", name), skip), False
    return _karpathy_items(name, images, skip), True


def _dataset_of(document: object) -> str:
    """Return the name of the data: "coco" in Karpathy's file, "COCO 2014 Dataset" in COCO's."""
    about = document if isinstance(document, dict) else {}
    info = about.get("info")
    named = about.get("dataset") or (info.get("description") if isinstance(info, dict) else None)
    return named if isinstance(named, str) else ""


def _with_splits(
    items: Iterable[RawImage],
    name: str,
    split_list: Path | None,
    split: str | None,
    skip: Skip,
    rule: IdRule,
) -> Iterator[RawImage]:
    """Yield the images that are in a split."""
    if (split_list is None) == (split is None):
        raise InputError(
            f"the captions {name} do not name the splits; give data.split_list, a JSON file "
            '{"train": [ids or file names], "val": …, "test": …}, or '
            "data.split: random(0.8/0.1/0.1, 1)"
        )
    images: list[tuple[str, RawImage]] = []
    for item in items:
        with skipping(item.position, skip):
            images.append((image_id(item.file, rule), item))
    if split_list is not None:
        splits = read_split_list(split_list, rule)
    else:
        splits = random_splits((identity for identity, _ in images), str(split))
    if images and not any(identity in splits for identity, _ in images):
        raise InputError(
            f"none of the {len(images):,} images of {name} is in the split list; "
            "give its own list as data.split_list"
        )
    for identity, item in images:
        if identity in splits:
            yield replace(item, split=splits[identity])
        else:
            skip(identity, IN_NO_SPLIT)


def _share_tokens(item: dict[str, object]) -> dict[str, object]:
    # six million tokens of COCO are 40,000 different strings: a third of the memory
    tokens = item.get("tokens")
    if isinstance(tokens, list):
        item["tokens"] = [intern(word) if isinstance(word, str) else word for word in tokens]
    return item


def _karpathy_items(name: str, images: list[object], skip: Skip) -> Iterator[RawImage]:
    _require_key("sentences", images, f"the images of {name}")
    for index, item in enumerate(images):
        with skipping(f"images[{index}]", skip) as position:
            images[index] = None  # one image at a time is in memory twice, not all of them
            file, sentences = text_member(item, "filename"), list_member(item, "sentences")
            split = member(item, "split")
            own_id = None
            if isinstance(item, dict) and item.get("filepath"):
                file = f"{text_member(item, 'filepath')}/{file}"
            if isinstance(item, dict) and "cocoid" in item:
                own_id = key_member(item, "cocoid")
            yield RawImage(position, file, split, sentences, has_tokens=True, own_id=own_id)


def _coco_items(
    name: str, images: Sequence[object], annotations: Sequence[object], skip: Skip
) -> Iterator[RawImage]:
    _require_key("caption", annotations, f"the annotations of {name}")
    files: dict[int | str, tuple[str, str]] = {}
    for index, item in enumerate(images):
        with skipping(f"images[{index}]", skip) as position:
            number, file = key_member(item, "id"), text_member(item, "file_name")
            if number in files:
                raise BadItem(f"duplicate id {number!r}, first used by {files[number][1]!r}")
            files[number] = (position, file)
    captions = _coco_captions(annotations, files, skip)
    for number, (position, file) in files.items():
        yield RawImage(position, file, None, captions[number], own_id=number)


def _textcaps_items(entries: Sequence[object], skip: Skip) -> Iterator[RawImage]:
    """Yield the images of TextCaps, whose entries are captions."""
    images: dict[str, tuple[str, object, list[object]]] = {}
    for index, item in enumerate(entries):
        with skipping(f"data[{index}]", skip) as position:
            file = f"{text_member(item, 'image_id')}.jpg"
            found = images.setdefault(file, (position, member(item, "set_name"), []))
            found[2].append(member(item, "caption_str"))
    for file, (position, split, captions) in images.items():
        yield RawImage(position, file, split, captions)


def _coco_captions(
    annotations: Sequence[object], numbers: Iterable[int | str], skip: Skip
) -> dict[int | str, list[object]]:
    captions: dict[int | str, list[tuple[int, object]]] = {number: [] for number in numbers}
    seen: set[int | str] = set()
    for index, item in enumerate(annotations):
        with skipping(f"annotations[{index}]", skip):
            number, caption = key_member(item, "image_id"), member(item, "caption")
            if number not in captions:
                raise BadItem(f"caption of an unknown image: {number!r:.40}")
            # VizWiz: captions that say only that the image is bad
            if isinstance(item, dict) and (item.get("is_rejected") or item.get("is_precanned")):
                continue
            # one caption twice would count as two references
            if isinstance(item, dict) and "id" in item:
                identity = key_member(item, "id")
                if identity in seen:
                    raise BadItem(f"duplicate id {identity!r}")
                seen.add(identity)
            order = item.get("id") if isinstance(item, dict) else None
            captions[number].append((order if isinstance(order, int) else index, caption))
    by_id = itemgetter(0)  # the files of COCO are not in this order
    return {
        number: [caption for _, caption in sorted(found, key=by_id)]
        for number, found in captions.items()
    }


def _jsonl_items(text: str, skip: Skip) -> Iterator[RawImage]:
    # not splitlines(): it also splits at U+2028, which JSON strings may contain
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        with skipping(f"line {number}", skip) as position:
            item = parse_json(line, where=position)
            if isinstance(item, dict) and "file_name" in item:  # metadata.jsonl
                file, found = text_member(item, "file_name"), captions_of(item)
                yield RawImage(position, file, item.get("split"), found or [])
                continue
            file, captions = text_member(item, "image"), list_member(item, "captions")
            split = item.get("split") if isinstance(item, dict) else None
            yield RawImage(position, file, split, captions)


def _list_of(document: object, key: str, name: str) -> list[object]:
    if not isinstance(document, dict) or key not in document:
        raise InputError(f"no key {key!r} in {name}; {LAYOUTS}")
    value = document[key]
    if not isinstance(value, list):
        raise InputError(f"{key!r} in {name} is not a list; {LAYOUTS}")
    return value


def _require_key(key: str, items: Sequence[object], where: str) -> None:
    if items and not any(isinstance(item, dict) and key in item for item in items):
        raise InputError(f"no key {key!r} in {where}; {LAYOUTS}")
