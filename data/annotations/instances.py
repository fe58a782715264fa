"""Annotated boxes from COCO instances (Lin et al. 2014, arXiv:1405.0312)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.json_items import (
    BadItem,
    key_member,
    list_member,
    member,
    pixel_numbers,
    read_each,
    text_member,
)
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json
from a2cap.data.image_ids import image_id

_Rows = dict[str, list[tuple[int, list[float], object]]]
"""Annotation id, x1 y1 x2 y2 and category id of each box, by image id."""


@dataclass(frozen=True)
class Instances:
    """What an image shows.

    boxes: (N, 4) float32 x1 y1 x2 y2 in pixels, ordered by annotation id; names: of the category
    of each, empty where it has none.
    """

    boxes: NDArray[np.float32]
    names: tuple[str, ...]


def read_boxes(path: Path) -> dict[str, NDArray[np.float32]]:
    """The boxes of each image, (R, 4) float32 x1 y1 x2 y2 in pixels, ordered by annotation id.

    Crowds and boxes without area are left out; an image without boxes has (0, 4). Raises
    InputError with the place of an annotation that cannot be read.
    """
    return {identity: found.boxes for identity, found in read_instances(path).items()}


def read_instances(path: Path) -> dict[str, Instances]:
    """The boxes of each image as `read_boxes` has them, with the names of their categories."""
    document = read_json(path)
    try:
        images, annotations = list_member(document, "images"), list_member(document, "annotations")
    except BadItem as error:
        raise InputError(
            f"not COCO instances: {str(path)!r} ({error}); give instances_*.json"
        ) from error
    names = _category_names(document)
    return {
        identity: _instances(rows, names)
        for identity, rows in _rows(path, images, annotations).items()
    }


def _category_names(document: object) -> dict[object, str]:
    """Name of each category; boxes are of use without it, so that what is not one is passed by."""
    categories = document.get("categories") if isinstance(document, dict) else None
    return {
        item["id"]: item["name"]
        for item in (categories if isinstance(categories, list) else ())
        if isinstance(item, dict)
        and isinstance(item.get("id"), int | str)
        and isinstance(item.get("name"), str)
    }


def _instances(rows: list[tuple[int, list[float], object]], names: dict[object, str]) -> Instances:
    ordered = sorted(rows, key=lambda row: row[:2])
    return Instances(
        boxes=np.array([box for _, box, _ in ordered], dtype=np.float32).reshape(-1, 4),
        names=tuple(
            names.get(category, "") if isinstance(category, int | str) else ""
            for *_, category in ordered
        ),
    )


def _rows(path: Path, images: Sequence[object], annotations: Sequence[object]) -> _Rows:
    ids: dict[int | str, str] = {}
    rows: _Rows = {}
    read_each(images, lambda item: _add_image(item, ids, rows), path=path, key="images")
    read_each(annotations, lambda item: _add_box(item, ids, rows), path=path, key="annotations")
    return rows


def _add_image(item: object, images: dict[int | str, str], rows: _Rows) -> None:
    number, identity = key_member(item, "id"), image_id(text_member(item, "file_name"))
    if number in images or identity in rows:
        raise BadItem(f"image {identity!r} stands twice")
    images[number] = identity
    rows[identity] = []


def _add_box(item: object, images: dict[int | str, str], rows: _Rows) -> None:
    number, order = key_member(item, "image_id"), member(item, "id")
    if number not in images:
        raise BadItem(f"box of an unknown image: {number!r:.40}")
    if not isinstance(order, int):
        raise BadItem("'id' is not an integer")
    x, y, width, height = pixel_numbers(list_member(item, "bbox"), "'bbox'")
    fields = item if isinstance(item, dict) else {}
    if width > 0 and height > 0 and fields.get("iscrowd", 0) != 1:
        corners = [x, y, x + width, y + height]
        rows[images[number]].append((order, corners, fields.get("category_id")))
