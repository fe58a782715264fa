"""Labelled boxes from COCO instances (Lin et al. 2014, arXiv:1405.0312).

COCO has no attributes. If the file lists some, `"attributes": [{"id": 1, "name": …}]` beside its
categories, an annotation's `"attributes": [names]` are read too, as generated scenes have them.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from a2cap.data.annotations.instances import Annotated, Sides, load_instances, read_annotated
from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    key_member,
    list_member,
    read_each,
    text_member,
)
from a2cap.data.box_check import require_convention
from a2cap.data.detection.labels import (
    WITHOUT_AREA,
    DetectionData,
    Label,
    check_usable,
    labelled_image,
    names_no_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.identities import Identities
from a2cap.data.image_ids import image_id, named_id, resolve_files

REPEATED = "repeated boxes"


class _Image(NamedTuple):
    file: str
    width: int
    height: int


def read_coco(
    instances: Path, images: Path, *, only: Collection[str] | None = None
) -> DetectionData:
    """Read the images of a COCO instances file, including those without boxes.

    images: folder of their files; those without a file, with a bad entry or with a bad box are
    skipped. only: names of the files to read, or their ids. Raises InputError with the position of
    a bad category or attribute, if too many images are skipped, if none is left, if the boxes of
    most images are of another convention, and if a name in `only` is not in the file or is the id
    that it gives to another image.
    """
    document = load_instances(instances, required=["categories"], optional=["attributes"])
    classes = _read_names(document, "categories", path=instances)
    attributes = _read_names(document, "attributes", path=instances)
    read_label = partial(
        _read_label,
        class_ids={number: index for index, number in enumerate(classes)},
        attribute_ids={name: index for index, name in enumerate(attributes.values())},
    )
    entries, bad = read_annotated(instances, document, image=_read_image, box=read_label)
    ids = None if only is None else _listed_ids(only, document, instances)
    if ids is not None:
        entries = {identity: entry for identity, entry in entries.items() if identity in ids}
    files = resolve_files({of: entry.image.file for of, entry in entries.items()}, images)
    reasons = {of: f"no file {e.image.file!r}" for of, e in entries.items() if of not in files}
    # an image with a bad box too: without the box, its object would be learnt as background
    reasons |= {
        item.image_id: item.reason
        for item in bad
        if ids is None or item.image_id in ids or names_no_image(item.image_id)
    }
    skipped = tuple(SkippedItem(identity, reason) for identity, reason in reasons.items())
    total = len(entries.keys() | reasons.keys())
    check_usable(skipped, total=total, annotations=instances, images=images)
    usable = {of: entries[of] for of in sorted(files.keys() - reasons.keys())}
    # an annotation that occurs twice counts once
    labels = {of: _labels(entry) for of, entry in usable.items()}
    boxes = {of: np.array([label.box for label in labels[of]], np.float32) for of in usable}
    sizes = {of: (entry.image.width, entry.image.height) for of, entry in usable.items()}
    require_convention(((of, boxes[of], sizes[of]) for of in usable), instances)
    labelled = tuple(
        labelled_image(of, files[of], width=image.width, height=image.height, labels=labels[of])
        for of, image in ((of, entry.image) for of, entry in usable.items())
    )
    read = sum(map(len, labels.values()))
    # labelled_image drops boxes without area
    data = DetectionData(
        classes=tuple(classes.values()),
        attributes=tuple(attributes.values()),
        images=labelled,
        skipped=skipped,
        dropped={
            WITHOUT_AREA: read - sum(len(image.boxes) for image in labelled),
            REPEATED: sum(len(entry.boxes) for entry in usable.values()) - read,
        },
    )
    return data if ids is None else data.subset(ids)


def _listed_ids(names: Collection[str], document: object, path: Path) -> frozenset[str]:
    """Return ids of files; raise InputError for a name that may be the id of another image."""
    pairs = []
    for item in list_member(document, "images"):
        with suppress(BadItem, InputError):
            pairs.append((image_id(text_member(item, "file_name")), key_member(item, "id")))
    identities = Identities(pairs)
    for name in names:
        owner = identities.annotation_reading(name)
        is_file = owner in (None, identities.file_reading(name))
        if not is_file and not identities.names_only_file(name):
            raise InputError(
                f"listed image {name!r} is the id that {str(path)!r} gives to the file {owner!r}; "
                "list the names of files with their suffix"
            )
    return frozenset(map(named_id, names))


def _labels(entry: Annotated[_Image, Label]) -> list[Label]:
    """Return the different labels of an image in the order of their ids."""
    return [label for _, label in sorted(dict.fromkeys(entry.boxes), key=itemgetter(0))]


def _read_names(document: dict[str, object], key: str, *, path: Path) -> dict[int, str]:
    """Return the names of the items under `key` by id, ordered by id; none without the key."""
    names: dict[int, str] = {}

    def add(item: object) -> None:
        number, name = integer_member(item, "id"), text_member(item, "name")
        if number in names:
            raise BadItem(f"duplicate id {number}")
        if name in names.values():
            raise BadItem(f"duplicate name {name!r}")
        names[number] = name

    read_each(list_member(document, key) if key in document else (), add, path=path, key=key)
    return dict(sorted(names.items()))


def _read_image(item: object) -> _Image:
    width, height = integer_member(item, "width"), integer_member(item, "height")
    if width < 1 or height < 1:
        raise BadItem(f"image of {width} x {height} pixels")
    return _Image(text_member(item, "file_name"), width, height)


def _read_label(
    item: dict[str, object],
    sides: Sides,
    *,
    class_ids: Mapping[int, int],
    attribute_ids: Mapping[str, int],
) -> Label:
    category = integer_member(item, "category_id")
    if category not in class_ids:
        raise BadItem(f"'category_id' is not among the categories: {category}")
    x, y, width, height = sides
    return Label(
        box=(x, y, x + width, y + height),
        class_id=class_ids[category],
        attribute_ids=_attribute_ids(item, attribute_ids),
        crowd=item.get("iscrowd", 0) == 1,
    )


def _attribute_ids(item: dict[str, object], attribute_ids: Mapping[str, int]) -> tuple[int, ...]:
    # Other tools write attributes of another form without listing them in the file.
    if not attribute_ids or "attributes" not in item:
        return ()
    ids = []
    for name in list_member(item, "attributes"):
        if not isinstance(name, str) or name not in attribute_ids:
            raise BadItem(f"attribute is not among the file's attributes: {name!r:.40}")
        ids.append(attribute_ids[name])
    return tuple(dict.fromkeys(ids))
