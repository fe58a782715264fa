"""Split lists: the split of each image, for annotations that do not name it."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json, read_text
from a2cap.data.identities import Identities
from a2cap.data.image_ids import named_id

logger = logging.getLogger(__name__)

SPLITS = {"train": "train", "restval": "train", "val": "val", "validation": "val", "test": "test"}
"""Split names in files, and the split that each counts as."""

DEFAULT_SPLIT = "random(0.8/0.1/0.1, 1)"
"""Split of captions that name none, if nothing is set."""

_OTHER_NAMES = {"training": "train", "valid": "val", "dev": "val", "testing": "test"}

_SHARE = r"([01](?:\.[0-9]+)?)"
_RANDOM = re.compile(rf"random\({_SHARE}/{_SHARE}/{_SHARE},\s*([0-9]+)\)")

_SPLIT_FILE = re.compile(r"(?:.*\.)?(train|dev|val|test)(?:Images)?\.txt")

# bottom-up-attention's splits of Visual Genome: "VG_100K/61512.jpg xml/61512.xml"; those of COCO
# in Up-Down-Captioner: "COCO_val2014_000000391895.jpg 391895"
_SECOND_COLUMN = re.compile(r"(?<=\.jpg)\s+\S+$")


def split_of(name: object) -> str | None:
    """Return the split that a name in a file counts as, None for an unknown one."""
    splits = {**SPLITS, **_OTHER_NAMES}
    return splits.get(name.strip().lower()) if isinstance(name, str) else None


def choose_splits(
    image_ids: Iterable[str],
    identities: Callable[[], Identities],
    name: str,
    split_list: Path | None,
    split: str | None,
) -> list[str | None]:
    """Return the split of each image, by a list or at random, of annotations that name none.

    identities: those of the images, which a list needs. name: of the annotations in messages;
    split: as for `random_splits`, by default DEFAULT_SPLIT with a notice. None for an image that
    the list lacks. Raises InputError if both are set, and for a list of other images.
    """
    if split_list is not None and split is not None:
        raise InputError("data.split and data.split_list are both set; leave one of them out")
    if split_list is not None:
        listed = read_split_list(
            split_list, identities().reader(f"the lines of {str(split_list)!r}")
        )
        listed_splits = [listed.get(image_id) for image_id in image_ids]
        if not any(listed_splits):
            raise InputError(
                f"none of the {len(listed_splits):,} images of {name} is in the split list; "
                "give its own list as data.split_list"
            )
        return listed_splits
    splits = random_splits(image_ids, split or DEFAULT_SPLIT)
    if split is None:
        logger.warning(
            "the captions %s name no splits: of %s images, 80 %% are training, 10 %% validation "
            "and 10 %% test images at random, as by data.split=%s; set it, or data.split_list, a "
            'JSON file {"train": [ids or file names], "val": …, "test": …}',
            name,
            f"{len(splits):,}",
            DEFAULT_SPLIT,
        )
    return [*splits]


def read_split_list(path: Path, read_key: Callable[[str], str | None] = named_id) -> dict[str, str]:
    """Return the split of each image id; read_key: id of an image in the list, or None.

    The file is JSON, `{"train": [ids or file names], …}`, or text with a line `id split` per image;
    a folder has a text file of images for each split, as Flickr8k and Flickr30k do. Raises
    InputError for an unknown split or an image in two splits.
    """
    name = repr(str(path))
    if path.is_dir():
        pairs = _folder_pairs(path, name)
    else:
        text = read_text(path)
        is_json = text.lstrip().startswith(("{", "["))
        pairs = _json_pairs(text, name) if is_json else _lines(text, name)
    splits: dict[str, str] = {}
    for image, split in pairs:
        own_split = split_of(split)
        if own_split is None:
            raise InputError(f"unknown split {split!r} in {name}; use train, val, test or restval")
        identity = read_key(image)
        if identity is None:
            continue
        earlier = splits.setdefault(identity, own_split)
        if earlier != own_split:
            raise InputError(
                f"image {identity!r} is in two splits of {name} "
                f"({earlier!r} and {own_split!r}); keep one"
            )
    if not splits:
        raise InputError(f"no images in the split list {name}; name at least one")
    return splits


def random_splits(image_ids: Iterable[str], split: str) -> list[str]:
    """Return a random split for each id; split: "random(0.8/0.1/0.1, 1)", the shares and the seed.

    The split of an image depends on the set of ids and the seed alone. Raises InputError if `split`
    has another form or the shares are not 1 in total.
    """
    match = _RANDOM.fullmatch(split.strip())
    shares = [float(share) for share in match.groups()[:3]] if match else []
    if match is None or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"data.split is {split!r}; write random(0.8/0.1/0.1, 1): the shares of train, val and "
            "test, 1 in total, and a seed"
        )
    # ordered by a hash: neither the file's order nor a random generator's version matters
    digests = bytearray()
    for identity in image_ids:
        digests += hashlib.sha256(f"{match[4]} {identity}".encode()).digest()[:8]
    count = len(digests) // 8
    val, test = (max(round(share * count), share > 0) for share in shares[1:])
    splits = ["train"] * count
    order = np.argsort(np.frombuffer(digests, ">u8"), kind="stable")
    for place, index in enumerate(order[: val + test].tolist()):
        splits[index] = "val" if place < val else "test"
    return splits


def read_keys(path: Path) -> list[str]:
    """Return the lines of a list with one id or image file per line.

    Raises InputError if there is none.
    """
    lines = (line.strip() for line in read_text(path).splitlines())
    keys = [_SECOND_COLUMN.sub("", line) for line in lines if line]
    if not keys:
        raise InputError(f"no images in the list {str(path)!r}; write one id per line")
    return keys


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
                    f"split {split!r} in {name} contains {image!r}; use ids or file names"
                )
            yield str(image), split


def _folder_pairs(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the images of Flickr_8k.trainImages.txt or train.txt, of dev or val, and of test."""
    files = {file: _SPLIT_FILE.fullmatch(file.name) for file in sorted(folder.glob("*.txt"))}
    splits = {file: match[1] for file, match in files.items() if match}
    if not splits:
        raise InputError(
            f"no split files in {name}; put Flickr_8k.trainImages.txt and the like, or train.txt, "
            "val.txt and test.txt into it"
        )
    for file, split in splits.items():
        for line in read_text(file).splitlines():
            if line.strip():
                yield line.strip(), split


def _lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) == 2:
            yield parts[0], parts[1]
        elif parts:
            raise InputError(
                f"line {number} of {name} is not 'id split': {line[:40]!r}; fix that line, "
                "or name the folder that has a list of each split"
            )
