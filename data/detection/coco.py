"""Labelled boxes from COCO instances (Lin et al. 2014, arXiv:1405.0312).

Attributes are no part of COCO. Where the file lists some, `"attributes": [{"id": 1, "name": …}]`
beside its categories, an annotation's `"attributes": [names]` are read too; generated scenes have
them (`a2 scenes`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    key_member,
    list_member,
    pixel_numbers,
    read_each,
    text_member,
)
from a2cap.data.annotations.read import SkippedItem, resolve_files
from a2cap.data.detection.labels import (
    WITHOUT_AREA,
    DetectionData,
    Label,
    LabelledImage,
    check_usable,
    labelled_image,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json
from a2cap.data.image_ids import image_id


def read_coco(
    instances: Path, images: Path, *, only: Collection[str] | None = None
) -> DetectionData:
    """The images of a COCO instances file, those without boxes too, their files below `images`.

    Classes are the categories in the order of their ids, boxes are in the order of annotation ids;
    `only` names the images to take. An image without a file is skipped. Raises InputError with
    the place of an item that cannot be read, where too many images are skipped, where none is
    left, and where an id of `only` is not in the file.
    """
    reading = _Reading(only)
    reading.read(instances)
    found = resolve_files({of: item.file for of, item in reading.images.items()}, images)
    skipped = tuple(
        SkippedItem(identity, f"no file {item.file!r}")
        for identity, item in reading.images.items()
        if identity not in found
    )
    check_usable(skipped, total=len(reading.images), annotations=instances, images=images)
    labelled = tuple(reading.images[identity].labelled(found) for identity in sorted(found))
    labels = sum(len(reading.images[identity].labels) for identity in found)
    data = DetectionData(
        classes=reading.classes.names,
        attributes=reading.attributes.names,
        images=labelled,
        skipped=skipped,
        dropped={WITHOUT_AREA: labels - sum(len(image.boxes) for image in labelled)},
    )
    return data if only is None else data.only(only)


@dataclass(frozen=True)
class _Names:
    """Names in the order of their ids, and the place of each id and of each name."""

    names: tuple[str, ...] = ()
    by_id: dict[int, int] = field(default_factory=dict)
    by_name: dict[str, int] = field(default_factory=dict)


@dataclass
class _Item:
    """An image's own entry, and its labels with the ids of their annotations."""

    identity: str
    file: str
    width: int
    height: int
    labels: list[tuple[int, Label]] = field(default_factory=list)

    def labelled(self, files: dict[str, Path]) -> LabelledImage:
        ordered = sorted(self.labels, key=lambda numbered: numbered[0])
        return labelled_image(
            self.identity,
            files[self.identity],
            width=self.width,
            height=self.height,
            labels=[label for _, label in ordered],
        )


class _Reading:
    """What one file says, item by item."""

    def __init__(self, only: Collection[str] | None) -> None:
        self._only = None if only is None else frozenset(only)
        self._items: dict[int | str, _Item | None] = {}
        self.images: dict[str, _Item] = {}
        self.classes = _Names()
        self.attributes = _Names()

    def read(self, path: Path) -> None:
        document = read_json(path)
        try:
            images, annotations = (list_member(document, k) for k in ("images", "annotations"))
            categories = list_member(document, "categories")
            has_attributes = isinstance(document, dict) and "attributes" in document
            attributes = list_member(document, "attributes") if has_attributes else []
        except BadItem as error:
            raise InputError(
                f"not COCO instances: {str(path)!r} ({error}); give instances_*.json"
            ) from error
        self.classes = _names(categories, path=path, key="categories")
        self.attributes = _names(attributes, path=path, key="attributes")
        read_each(images, self._add_image, path=path, key="images")
        read_each(annotations, self._add_label, path=path, key="annotations")

    def _add_image(self, item: object) -> None:
        number, file = key_member(item, "id"), text_member(item, "file_name")
        identity = image_id(file)
        if number in self._items or identity in self.images:
            raise BadItem(f"image {identity!r} stands twice")
        width, height = integer_member(item, "width"), integer_member(item, "height")
        if width < 1 or height < 1:
            raise BadItem(f"image of {width} x {height} pixels")
        wanted = self._only is None or identity in self._only
        entry = _Item(identity, file, width, height) if wanted else None
        self._items[number] = entry
        if entry is not None:
            self.images[identity] = entry

    def _add_label(self, item: object) -> None:
        number, order = key_member(item, "image_id"), integer_member(item, "id")
        if number not in self._items:
            raise BadItem(f"box of an unknown image: {number!r:.40}")
        category = integer_member(item, "category_id")
        if category not in self.classes.by_id:
            raise BadItem(f"'category_id' is not among the categories: {category}")
        x, y, width, height = pixel_numbers(list_member(item, "bbox"), "'bbox'")
        fields = item if isinstance(item, dict) else {}
        label = Label(
            box=(x, y, x + width, y + height),
            class_id=self.classes.by_id[category],
            attribute_ids=self._attribute_ids(item) if self.attributes.names else (),
            crowd=fields.get("iscrowd", 0) == 1,
        )
        entry = self._items[number]
        if entry is not None:
            entry.labels.append((order, label))

    def _attribute_ids(self, item: object) -> tuple[int, ...]:
        if isinstance(item, dict) and "attributes" not in item:
            return ()
        ids = []
        for name in list_member(item, "attributes"):
            if not isinstance(name, str) or name not in self.attributes.by_name:
                raise BadItem(f"attribute is not among the file's attributes: {name!r:.40}")
            ids.append(self.attributes.by_name[name])
        return tuple(dict.fromkeys(ids))


def _names(items: Sequence[object], *, path: Path, key: str) -> _Names:
    found: dict[int, str] = {}

    def add(item: object) -> None:
        number, name = integer_member(item, "id"), text_member(item, "name")
        if number in found:
            raise BadItem(f"id {number} stands twice")
        if name in found.values():
            raise BadItem(f"name {name!r} stands twice")
        found[number] = name

    read_each(items, add, path=path, key=key)
    names = tuple(found[number] for number in sorted(found))
    return _Names(
        names=names,
        by_id={number: index for index, number in enumerate(sorted(found))},
        by_name={name: index for index, name in enumerate(names)},
    )
