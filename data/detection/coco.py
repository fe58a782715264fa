"""Labelled boxes from COCO instances (Lin et al. 2014, arXiv:1405.0312).

COCO has no attributes. If the file lists some, `"attributes": [{"id": 1, "name": …}]` beside its
categories, an annotation's `"attributes": [names]` are read too, as generated scenes have them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from a2cap.data.annotations.instances import Sides, load_instances, read_annotated
from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    list_member,
    read_each,
    text_member,
)
from a2cap.data.annotations.read import SkippedItem, resolve_files
from a2cap.data.detection.labels import (
    WITHOUT_AREA,
    DetectionData,
    Label,
    check_usable,
    labelled_image,
)


def read_coco(
    instances: Path, images: Path, *, only: Collection[str] | None = None
) -> DetectionData:
    """Read the images of a COCO instances file, including those without boxes.

    images: folder of their files. only: ids of the images to read. Classes are the categories
    ordered by id, boxes are ordered by annotation id. An image without a file is skipped. Raises
    InputError with the position of an item that cannot be read, if too many images are skipped, if
    none is left, and if an id of `only` is not in the file.
    """
    document = load_instances(instances, required=["categories"], optional=["attributes"])
    classes = _read_names(document, "categories", path=instances)
    attributes = _read_names(document, "attributes", path=instances)
    entries = read_annotated(
        instances,
        document,
        image=_read_image,
        box=partial(_read_label, classes=classes, attributes=attributes),
    )
    if only is not None:
        wanted = frozenset(only)
        entries = {identity: entry for identity, entry in entries.items() if identity in wanted}
    found = resolve_files({of: entry.image.file for of, entry in entries.items()}, images)
    skipped = tuple(
        SkippedItem(identity, f"no file {entry.image.file!r}")
        for identity, entry in entries.items()
        if identity not in found
    )
    check_usable(skipped, total=len(entries), annotations=instances, images=images)
    labelled = []
    for identity in sorted(found):
        entry = entries[identity]
        labels = [label for _, label in sorted(entry.boxes, key=itemgetter(0))]
        size = {"width": entry.image.width, "height": entry.image.height}
        labelled.append(labelled_image(identity, found[identity], **size, labels=labels))
    # labelled_image drops boxes without area
    read = sum(len(entries[identity].boxes) for identity in found)
    data = DetectionData(
        classes=classes.names,
        attributes=attributes.names,
        images=tuple(labelled),
        skipped=skipped,
        dropped={WITHOUT_AREA: read - sum(len(image.boxes) for image in labelled)},
    )
    return data if only is None else data.subset(only)


@dataclass(frozen=True)
class _Names:
    """Names ordered by id, and the index of each id and of each name."""

    names: tuple[str, ...]
    by_id: dict[int, int]
    by_name: dict[str, int]


@dataclass(frozen=True)
class _Image:
    """File name and size of an image in the annotations."""

    file: str
    width: int
    height: int


def _read_names(document: dict[str, object], key: str, *, path: Path) -> _Names:
    found: dict[int, str] = {}

    def add(item: object) -> None:
        number, name = integer_member(item, "id"), text_member(item, "name")
        if number in found:
            raise BadItem(f"duplicate id {number}")
        if name in found.values():
            raise BadItem(f"duplicate name {name!r}")
        found[number] = name

    read_each(list_member(document, key) if key in document else (), add, path=path, key=key)
    names = tuple(found[number] for number in sorted(found))
    return _Names(
        names=names,
        by_id={number: index for index, number in enumerate(sorted(found))},
        by_name={name: index for index, name in enumerate(names)},
    )


def _read_image(item: object) -> _Image:
    width, height = integer_member(item, "width"), integer_member(item, "height")
    if width < 1 or height < 1:
        raise BadItem(f"image of {width} x {height} pixels")
    return _Image(text_member(item, "file_name"), width, height)


def _read_label(
    item: dict[str, object], sides: Sides, *, classes: _Names, attributes: _Names
) -> Label:
    category = integer_member(item, "category_id")
    if category not in classes.by_id:
        raise BadItem(f"'category_id' is not among the categories: {category}")
    x, y, width, height = sides
    return Label(
        box=(x, y, x + width, y + height),
        class_id=classes.by_id[category],
        attribute_ids=_attribute_ids(item, attributes),
        crowd=item.get("iscrowd", 0) == 1,
    )


def _attribute_ids(item: dict[str, object], attributes: _Names) -> tuple[int, ...]:
    # Other tools write attributes of another form without listing them in the file.
    if not attributes.names or "attributes" not in item:
        return ()
    ids = []
    for name in list_member(item, "attributes"):
        if not isinstance(name, str) or name not in attributes.by_name:
            raise BadItem(f"attribute is not among the file's attributes: {name!r:.40}")
        ids.append(attributes.by_name[name])
    return tuple(dict.fromkeys(ids))
