"""Karpathy's file rebuilt from official captions (Karpathy and Fei-Fei 2015, arXiv:1412.2306).

With the captions of 2014, images, sentences and tokens have the order of the published file: its
words in the order of their first occurrence are those of the published vocabulary.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.data.annotations.caption import tokenize
from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    list_member,
    read_each,
    text_member,
)
from a2cap.data.errors import InputError
from a2cap.data.files.atomic import replacing
from a2cap.data.files.json_file import read_json
from a2cap.data.identities import Identities
from a2cap.data.image_ids import image_id, sample_ids

_REMEDY = "list the names of files with their suffix"
_COCO_NAME = re.compile(r"COCO_([a-z]+[0-9]{4})_[0-9]{12}\.jpg")


@dataclass(frozen=True)
class _Image:
    """An image of a caption file; captions: pairs of annotation id and text."""

    number: int
    file: str
    captions: list[tuple[int, str]] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Name of COCO's folder, empty for other file names."""
        match = _COCO_NAME.fullmatch(self.file)
        return match[1] if match else ""


def write_karpathy(
    annotations: Sequence[Path], target: Path, *, val: Iterable[str], test: Iterable[str]
) -> Counter[str]:
    """Write COCO caption files as one dataset_coco.json; return its numbers by split.

    val, test: names or ids of their images; others of val2014 are restval, all else is train. The
    counter also has the number of "captions". Raises InputError for a bad item, for an image of
    `val` or `test` without captions, and for a number in them that fits two images.
    """
    images = _read_images(annotations)
    identities = Identities((identity, image.number) for identity, image in images.items())

    def ids(split: str, names: Iterable[str]) -> set[str]:
        read = identities.reader(f"lines of the {split} list", remedy=_REMEDY)
        return {read(name) or name for name in names}

    val, test = ids("val", val), ids("test", test)
    missing = sorted((val | test) - set(images))
    if missing:
        raise InputError(
            f"{len(missing):,} images of the val and test lists are not in the captions: "
            f"{sample_ids(missing)}; give captions_val2014.json too"
        )
    both = sorted(val & test)
    if both:
        raise InputError(f"images in both the val and the test list: {sample_ids(both)}; keep one")
    counts: Counter[str] = Counter()
    with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as file:
        separator = '{"images": ['
        # the published file starts with val2014
        ordered = sorted(images.items(), key=lambda item: item[1].folder, reverse=True)
        for number, (identity, image) in enumerate(ordered):
            split = "restval" if image.folder == "val2014" else "train"
            split = "val" if identity in val else "test" if identity in test else split
            counts.update({split: 1, "captions": len(image.captions)})
            # image by image: the whole text has 150 MB
            file.write(separator + json.dumps(_karpathy_image(image, number, split)))
            separator = ", "
        file.write('], "dataset": "coco"}')
    return counts


def _read_images(annotations: Sequence[Path]) -> dict[str, _Image]:
    images: dict[str, _Image] = {}
    numbers: dict[int, _Image] = {}

    def add_image(item: object) -> None:
        image = _Image(integer_member(item, "id"), text_member(item, "file_name"))
        identity = image_id(image.file)
        if identity in images or image.number in numbers:
            raise BadItem(f"duplicate image {identity!r}")
        images[identity] = numbers[image.number] = image

    def add_caption(item: object) -> None:
        number = integer_member(item, "image_id")
        if number not in numbers:
            raise BadItem(f"caption of an unknown image: {number}")
        numbers[number].captions.append((integer_member(item, "id"), text_member(item, "caption")))

    for path in annotations:
        document = read_json(path)
        for key, add in (("images", add_image), ("annotations", add_caption)):
            try:
                items = list_member(document, key)
            except BadItem as error:
                raise InputError(
                    f"not COCO captions: {str(path)!r} ({error}); give captions_*2014.json"
                ) from error
            read_each(items, add, path=path, key=key)
    return images


def _karpathy_image(image: _Image, number: int, split: str) -> dict[str, object]:
    return {
        "filepath": image.folder,
        "sentids": [order for order, _ in image.captions],
        "filename": image.file,
        "imgid": number,
        "split": split,
        "sentences": [
            {"tokens": tokenize(raw), "raw": raw, "imgid": number, "sentid": order}
            for order, raw in image.captions
        ],
        "cocoid": image.number,
    }
