"""Reader of COCO instances: annotated boxes (Lin et al. 2014, arXiv:1405.0312)."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    key_member,
    list_member,
    pixel_numbers,
    text_member,
)
from a2cap.data.box_check import require_boxes, require_convention
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.data.image_ids import image_id
from a2cap.data.regions import NO_CLASS, Regions

logger = logging.getLogger(__name__)

Sides = tuple[float, float, float, float]
"""x, y, width and height in pixels."""

_Row = tuple[list[float], str, int, float]
"""x1 y1 x2 y2 of a box, name and id of its category, and score."""

ImageEntry = TypeVar("ImageEntry")
BoxEntry = TypeVar("BoxEntry")


@dataclass(frozen=True)
class Instances:
    """Annotated boxes of one image.

    boxes: (N, 4) float32 x1 y1 x2 y2 in pixels, ordered by annotation id.
    names: category of each box, empty if it has none.
    size: width and height in the file, None if it does not state them.
    problem: a box that cannot be read, None without one.
    class_ids: (N,) int32 ids of named categories, -1 for others.
    scores: (N,) float32 in [0, 1], 1 where none is stated.
    """

    boxes: NDArray[np.float32]
    names: tuple[str, ...]
    size: tuple[int, int] | None = None
    problem: str | None = None
    class_ids: NDArray[np.int32] | None = None
    scores: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def require_usable(self, width: int, height: int) -> None:
        """Raise InputError for a bad box, and for boxes of an image of another size.

        width, height: of the image as EXIF turns it.
        """
        if self.problem is not None:
            raise InputError(f"{self.problem}; fix or remove it")
        if self.size is not None and self.size != (width, height):
            raise InputError(
                f"image of {width} x {height} pixels after EXIF rotation, its boxes expect "
                f"{self.size[0]} x {self.size[1]}; correct them and the size beside them"
            )
        require_boxes(self.boxes, (width, height), order="xywh")

    def labelled(self, regions: Regions) -> Regions:
        """Return the regions of these boxes with categories and scores, unless they have classes.

        A whole image in place of boxes keeps neither.
        """
        has_classes = bool((regions.class_ids != NO_CLASS).any())
        if not len(self) or self.class_ids is None or self.scores is None or has_classes:
            return regions
        return replace(regions, class_ids=self.class_ids, scores=self.scores)


@dataclass(frozen=True)
class Annotated(Generic[ImageEntry, BoxEntry]):
    """One image of a file, and its boxes with their annotation ids in the order of the file."""

    image: ImageEntry
    boxes: list[tuple[int, BoxEntry]] = field(default_factory=list)


def read_instances(path: Path) -> dict[str, Instances]:
    """Return the boxes of each image by id, without crowds and boxes without area.

    An image without boxes has (0, 4). Raises InputError if too many boxes cannot be read, and if
    those of most images are of another convention.
    """
    document = load_instances(path)
    names = category_names(document)

    def read_box(item: dict[str, object], sides: Sides) -> _Row | None:
        x, y, width, height = sides
        if width <= 0 or height <= 0 or item.get("iscrowd", 0) == 1:
            return None
        category, score = item.get("category_id"), item.get("score", 1)
        name = names.get(category, "") if isinstance(category, int | str) else ""
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise BadItem(f"'score' is not from 0 to 1: {score!r:.40}")
        is_known = isinstance(category, int) and name != "" and abs(category) < 2**31
        class_id = cast(int, category) if is_known else NO_CLASS
        return [x, y, x + width, y + height], name, class_id, score

    instances = {}
    entries, bad = read_annotated(path, document, image=_stated_size, box=read_box)
    problems = {item.image_id: item.reason for item in bad}
    for position in problems.keys() - entries.keys():
        logger.warning("skipped %s of %r: %s", position, str(path), problems[position])
    for identity, entry in entries.items():
        # a box with a duplicate id still has a fixed position
        rows = [row for _, row in sorted(entry.boxes, key=lambda box: (box[0], box[1][0]))]
        instances[identity] = Instances(
            np.array([row[0] for row in rows], dtype=np.float32).reshape(-1, 4),
            tuple(row[1] for row in rows),
            entry.image,
            problems.get(identity),
            np.array([row[2] for row in rows], dtype=np.int32),
            np.array([row[3] for row in rows], dtype=np.float32),
        )
    sized = ((name, boxes.boxes, boxes.size) for name, boxes in instances.items() if boxes.size)
    require_convention(sized, path)
    return instances


def read_categories(path: Path, document: dict[str, object]) -> dict[str, frozenset[str]]:
    """Return the names of the categories in each image by id, crowds among them.

    document: of `load_instances`. Raises InputError if too many boxes cannot be read.
    """
    names = category_names(document)

    def read_name(item: dict[str, object], sides: Sides) -> str | None:
        category = item.get("category_id")
        return names.get(category) if isinstance(category, int | str) else None

    images, bad = read_annotated(path, document, image=lambda _: None, box=read_name)
    for item in bad:
        logger.warning("skipped %s of %r: %s", item.image_id, str(path), item.reason)
    return {
        identity: frozenset(name for _, name in entry.boxes) for identity, entry in images.items()
    }


def load_instances(
    path: Path, *, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> dict[str, object]:
    """Load a file with lists of images, annotations, and what else is `required` or `optional`."""
    document = read_json(path)
    try:
        for key in ("images", "annotations", *required, *optional):
            if key not in optional or key in cast("dict[str, object]", document):
                list_member(document, key)
    except BadItem as error:
        raise InputError(
            f"not COCO instances: {str(path)!r} ({error}); give instances_*.json"
        ) from error
    return cast("dict[str, object]", document)


def read_annotated(
    path: Path,
    document: object,
    *,
    image: Callable[[object], ImageEntry],
    box: Callable[[dict[str, object], Sides], BoxEntry | None],
) -> tuple[dict[str, Annotated[ImageEntry, BoxEntry]], list[SkippedItem]]:
    """Return the images by id with their boxes, converted by `image` and `box`, and the bad items.

    `box` also gets the checked `bbox`, and returns None to leave the box out. Both may raise
    BadItem. A bad image or box has the id of its image, or its position if that is not known. All
    images that share a file or an id are bad: nothing states whose their boxes are. Raises
    InputError if too many images or boxes are bad.
    """
    items, annotations = list_member(document, "images"), list_member(document, "annotations")
    entries: dict[str, Annotated[ImageEntry, BoxEntry]]
    entries, owners, bad_images = _read_images(items, image)
    bad_boxes = []
    for index, item in enumerate(annotations):
        position = owner = f"annotations[{index}]"
        try:
            number = key_member(item, "image_id")
            if number not in owners:
                owners[number] = position  # an unknown image is listed once
                raise BadItem(f"box of an unknown image: {number!r:.40}")
            owner = owners[number]
            if owner not in entries:
                continue
            order = integer_member(item, "id")
            x, y, width, height = pixel_numbers(list_member(item, "bbox"), "'bbox'")
            entry = box(cast("dict[str, object]", item), (x, y, width, height))
            if entry is not None:
                entries[owner].boxes.append((order, entry))
        except BadItem as error:
            reason = str(error) if owner == position else f"{position}: {error}"
            bad_boxes.append(SkippedItem(owner, reason))
    check_skip_limit(bad_images, len(items), f"images of {str(path)!r}")
    check_skip_limit(bad_boxes, len(annotations), f"boxes of {str(path)!r}")
    return entries, [*bad_boxes, *bad_images]


def _read_images(
    items: Sequence[object], image: Callable[[object], ImageEntry]
) -> tuple[dict[str, Annotated[ImageEntry, BoxEntry]], dict[int | str, str], list[SkippedItem]]:
    """Return the images by image id, the image id or position of each `id`, and the bad images."""
    entries: dict[str, Annotated[ImageEntry, BoxEntry]] = {}
    owners: dict[int | str, str] = {}
    bad: dict[str, str] = {}
    for index, item in enumerate(items):
        owner = position = f"images[{index}]"
        number: int | str | None = None
        with suppress(BadItem):
            number = key_member(item, "id")
        try:
            owner = image_id(text_member(item, "file_name"))
            if owner in entries:
                raise BadItem(f"duplicate image {owner!r}")
            entries[owner] = Annotated(image(item))
            key = key_member(item, "id")
            if key in owners:
                bad[owners[key]] = f"{position}: duplicate id {key!r}"
                raise BadItem(f"duplicate id {key!r}")
        except (BadItem, InputError) as error:
            bad[owner] = str(error) if owner == position else f"{position}: {error}"
        if number is not None:
            owners.setdefault(number, owner)
    return entries, owners, [SkippedItem(owner, reason) for owner, reason in bad.items()]


def _stated_size(item: object) -> tuple[int, int] | None:
    stated = [item.get(key) if isinstance(item, dict) else None for key in ("width", "height")]
    width, height = (side if isinstance(side, int) else 0 for side in stated)
    return (width, height) if width > 0 and height > 0 else None


def category_names(document: dict[str, object]) -> dict[object, str]:
    """Return the name of each category; skip bad ones, because boxes are usable without names."""
    categories = document.get("categories")
    return {
        item["id"]: item["name"]
        for item in (categories if isinstance(categories, list) else ())
        if isinstance(item, dict)
        and isinstance(item.get("id"), int | str)
        and isinstance(item.get("name"), str)
    }
