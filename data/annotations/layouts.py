"""Layouts of caption annotations, each read into the same unchecked items.

- Karpathy's `dataset_coco.json` (Karpathy and Fei-Fei 2015, arXiv:1412.2306), also without folders;
- COCO captions (`images` and `annotations`), which need a split list;
- `captions.jsonl`, one `{"image": "a/b.jpg", "captions": ["…"], "split": "train"}` per line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from sys import intern

from a2cap.data.annotations.json_items import BadItem, key_member, list_member, member, text_member
from a2cap.data.annotations.split_list import read_split_list
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json, read_text
from a2cap.data.image_ids import image_id

IN_NO_SPLIT = "in no split"
"""Reason of a skip that the user chose; it does not count as a fault of the file."""

LAYOUTS = "give a Karpathy file (dataset_coco.json), COCO captions, or a captions.jsonl"

Skip = Callable[[str, str], None]
"""Called with the position of a bad item, such as 'images[3]', and the reason."""

# COCO and Karpathy files start with other keys
_FIRST_JSONL_KEY = re.compile(r'\s*\{\s*"(?:image|captions|split)"\s*:')


@dataclass(frozen=True)
class RawImage:
    """One image of a file; only the type of `file` is checked.

    has_tokens: True if captions are Karpathy's objects of raw and tokens, False for strings.
    """

    position: str
    file: str
    split: object
    captions: Sequence[object]
    has_tokens: bool = False


def read_items(path: Path, split_list: Path | None, skip: Skip) -> Iterator[RawImage]:
    """Yield the images of an annotation file in order; the content determines its layout.

    Raises InputError if the layout is unknown, if `split_list` is missing for COCO captions, or if
    it is given for a layout that names the splits.
    """
    name = repr(str(path))
    text = read_text(path)
    if path.name.removesuffix(".gz").endswith(".jsonl") or _FIRST_JSONL_KEY.match(text):
        _reject_split_list(name, split_list)
        return _jsonl_items(text, skip)
    document = parse_json(text, where=name, convert=_share_tokens)
    images = _list_of(document, "images", name)
    if isinstance(document, dict) and "annotations" in document:
        annotations = _list_of(document, "annotations", name)
        if split_list is None:
            raise InputError(
                f"the COCO captions {name} do not name the splits; give data.split_list, "
                'a JSON file {"train": [ids or file names], "val": …, "test": …}'
            )
        return _coco_items(name, images, annotations, read_split_list(split_list), skip)
    _reject_split_list(name, split_list)
    return _karpathy_items(name, images, skip)


def _share_tokens(item: dict[str, object]) -> dict[str, object]:
    # six million tokens of COCO are 40,000 different strings: a third of the memory
    tokens = item.get("tokens")
    if isinstance(tokens, list):
        item["tokens"] = [intern(word) if isinstance(word, str) else word for word in tokens]
    return item


def _karpathy_items(name: str, images: Sequence[object], skip: Skip) -> Iterator[RawImage]:
    _require_key("sentences", images, f"the images of {name}")
    for index, item in enumerate(images):
        with _skipping(f"images[{index}]", skip) as position:
            file, sentences = text_member(item, "filename"), list_member(item, "sentences")
            split = member(item, "split")
            if isinstance(item, dict) and item.get("filepath"):
                file = f"{text_member(item, 'filepath')}/{file}"
            yield RawImage(position, file, split, sentences, has_tokens=True)


def _coco_items(
    name: str,
    images: Sequence[object],
    annotations: Sequence[object],
    splits: Mapping[str, str],
    skip: Skip,
) -> Iterator[RawImage]:
    _require_key("caption", annotations, f"the annotations of {name}")
    files: dict[int | str, tuple[str, str]] = {}
    for index, item in enumerate(images):
        with _skipping(f"images[{index}]", skip) as position:
            number, file = key_member(item, "id"), text_member(item, "file_name")
            if number in files:
                raise BadItem(f"duplicate id {number!r}, first used by {files[number][1]!r}")
            files[number] = (position, file)
    captions = _coco_captions(annotations, files, skip)
    used = 0
    for number, (position, file) in files.items():
        with _skipping(position, skip):
            identity = image_id(file)
            if identity in splits:
                used += 1
                yield RawImage(position, file, splits[identity], captions[number])
            else:
                skip(identity, IN_NO_SPLIT)
    if files and not used:
        raise InputError(
            f"none of the {len(files):,} images of {name} is in the split list; "
            "give its own list as data.split_list"
        )


def _coco_captions(
    annotations: Sequence[object], numbers: Iterable[int | str], skip: Skip
) -> dict[int | str, list[object]]:
    captions: dict[int | str, list[object]] = {number: [] for number in numbers}
    seen: set[int | str] = set()
    for index, item in enumerate(annotations):
        with _skipping(f"annotations[{index}]", skip):
            number, caption = key_member(item, "image_id"), member(item, "caption")
            if number not in captions:
                raise BadItem(f"caption of an unknown image: {number!r:.40}")
            # one caption twice would count as two references
            if isinstance(item, dict) and "id" in item:
                identity = key_member(item, "id")
                if identity in seen:
                    raise BadItem(f"duplicate id {identity!r}")
                seen.add(identity)
            captions[number].append(caption)
    return captions


def _jsonl_items(text: str, skip: Skip) -> Iterator[RawImage]:
    # not splitlines(): it also splits at U+2028, which JSON strings may contain
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        with _skipping(f"line {number}", skip) as position:
            item = parse_json(line, where=position)
            file, captions = text_member(item, "image"), list_member(item, "captions")
            yield RawImage(position, file, member(item, "split"), captions)


@contextmanager
def _skipping(position: str, skip: Skip) -> Iterator[str]:
    """Give the position of an item, and skip the item if it is bad."""
    try:
        yield position
    except (BadItem, InputError) as error:
        skip(position, str(error))


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


def _reject_split_list(name: str, split_list: Path | None) -> None:
    if split_list is not None:
        raise InputError(f"{name} already names the splits; remove data.split_list")
