"""Which image is in which split, where the annotations do not say."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json, read_text
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id

SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
"""Split names as files have them, and the split that each counts as."""

_ANNOTATION_FILE = re.compile(r"\s+\S+\.xml$")


def read_split_list(path: Path) -> dict[str, str]:
    """The split of each image id.

    Read from JSON `{"train": [ids or file names], …}` or from text with a line `id split` for each
    image. Raises InputError for an unknown split or an image in two.
    """
    text = read_text(path)
    name = repr(str(path))
    pairs = _json_pairs(text, name) if text.lstrip().startswith(("{", "[")) else _lines(text, name)
    splits: dict[str, str] = {}
    for image, split in pairs:
        if split not in SPLITS:
            raise InputError(f"unknown split {split!r} in {name}; use train, val, test or restval")
        identity = _identity(image)
        known = splits.setdefault(identity, SPLITS[split])
        if known != SPLITS[split]:
            raise InputError(
                f"image {identity!r} is in two splits of {name} "
                f"({known!r} and {SPLITS[split]!r}); keep one"
            )
    if not splits:
        raise InputError(f"no images in the split list {name}; name at least one")
    return splits


def read_ids(path: Path) -> frozenset[str]:
    """The image ids of a list with one id or image file a line.

    A name of an .xml that follows is passed by, so that Visual Genome's splits as
    bottom-up-attention has them ("VG_100K/61512.jpg xml/61512.xml") are such lists. Raises
    InputError where there is none.
    """
    lines = (line.strip() for line in read_text(path).splitlines())
    ids = frozenset(_identity(_ANNOTATION_FILE.sub("", line)) for line in lines if line)
    if not ids:
        raise InputError(f"no images in the list {str(path)!r}; write one id a line")
    return ids


def _json_pairs(text: str, name: str) -> Iterator[tuple[str, str]]:
    document = parse_json(text, where=name)
    if not isinstance(document, dict):
        raise InputError(f"split list {name} is not a JSON object; write it as {{split: [ids]}}")
    for split, images in document.items():
        if not isinstance(images, list):
            raise InputError(
                f"split {split!r} in {name} is not a list; write it as {{split: [ids]}}"
            )
        for image in images:
            if isinstance(image, bool) or not isinstance(image, int | str):
                raise InputError(
                    f"split {split!r} in {name} holds {image!r}; use ids or file names"
                )
            yield str(image), split


def _lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) == 2:
            yield parts[0], parts[1]
        elif parts:
            raise InputError(
                f"line {number} of {name} is not 'id split': {line[:40]!r}; mend that line"
            )


def _identity(image: str) -> str:
    if PurePosixPath(image).suffix.lower() in IMAGE_SUFFIXES:
        return image_id(image)
    # An id without suffix may hold a dot, which would be taken for one.
    return image_id(image + ".jpg")
