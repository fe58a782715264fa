"""Tab-separated region features, one line of base64 per image, without a header.

bottom-up-attention @514e561 (tools/generate_tsv.py) writes six columns, LXMERT and
airsplay/py-bottom-up-attention @85ec9b7 ten, with the stem of the file as the id and the height
before the width. Published files often contain broken lines: each is skipped with its reason.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import (
    Ids,
    ImageFeatures,
    make_regions,
    read_or_skip,
)
from a2cap.data.identities import AmbiguousIdError
from a2cap.data.image_ids import named_id

Columns = Literal["caffe", "lxmert"]

_REGIONS = ("num_boxes", "boxes", "features")
_OBJECTS = ("objects_id", "objects_conf", "attrs_id", "attrs_conf")
_COLUMNS: dict[Columns, tuple[str, ...]] = {
    "caffe": ("image_id", "image_w", "image_h", *_REGIONS),
    "lxmert": ("img_id", "img_h", "img_w", *_OBJECTS, *_REGIONS),
}


class TsvSource:
    """The images of a file; further lines of the same image are skipped."""

    def __init__(self, path: Path, ids: Ids = named_id) -> None:
        self.path, self._ids = path, ids
        self._columns = _COLUMNS[_layout(path)]

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        seen: set[str] = set()
        width = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                name = f"line {number}"
                item = read_or_skip(name, partial(_image, line, self._columns, self._ids))
                skipped = _name(line, self._columns, self._ids) or name
                if isinstance(item, ImageFeatures):
                    found = item.regions.features.shape[1]
                    width = width or found
                    if item.image_id in seen:
                        item = SkippedItem(name, f"duplicate line of image {item.image_id!r}")
                    elif found != width:
                        reason = f"{name}: {found} features per region, not {width}"
                        item = SkippedItem(skipped, reason)
                    else:
                        seen.add(item.image_id)
                elif skipped != name:
                    item = SkippedItem(skipped, f"{name}: {item.reason}")
                yield item

    def __len__(self) -> int:
        with self.path.open("rb") as file:
            return sum(1 for _ in file)


def write_tsv(
    path: Path, images: Iterable[ImageFeatures], *, columns: Columns, prefix: str = ""
) -> None:
    """Write images; prefix: text before the id in LXMERT's names, such as "COCO_val2014_"."""
    with path.open("wb") as file:
        for image in images:
            fields = _caffe(image) if columns == "caffe" else _lxmert(image, prefix)
            arrays = (image.regions.boxes, image.regions.features)
            file.write(b"\t".join([*fields, *(_encode(one, "<f4") for one in arrays)]) + b"\n")


def _caffe(image: ImageFeatures) -> list[bytes]:
    regions = image.regions
    fields = (int(image.image_id), regions.width, regions.height, len(regions))
    return [str(field).encode() for field in fields]


def _lxmert(image: ImageFeatures, prefix: str) -> list[bytes]:
    regions = image.regions
    count, attributes, known = len(regions), regions.attribute_ids, regions.attribute_scores
    return [
        f"{prefix}{image.image_id}".encode(),
        str(regions.height).encode(),
        str(regions.width).encode(),
        _encode(regions.class_ids, "<i8"),
        _encode(regions.scores, "<f4"),
        _encode(np.full(count, -1) if attributes is None else attributes, "<i8"),
        _encode(np.zeros(count) if known is None else known, "<f4"),
        str(count).encode(),
    ]


def _layout(path: Path) -> Columns:
    """Detect the columns of a file; raise InputError if its first line has neither."""
    with path.open("rb") as file:
        count = len(file.readline().split(b"\t"))
    for layout, columns in _COLUMNS.items():
        if count == len(columns):
            return layout
    raise InputError(
        f"first line of {path.name!r} has {count} columns, not 6 (caffe) or 10 (LXMERT); "
        "name a file of one of them"
    )


def _name(line: bytes, columns: tuple[str, ...], ids: Ids) -> str | None:
    """Return the image id of a line, damaged or not; None if it has none."""
    first, *others = line.split(b"\t")
    try:
        return ids(first.decode()) if len(others) + 1 == len(columns) else None
    except AmbiguousIdError:
        raise
    except (UnicodeDecodeError, InputError):
        return None


def _image(line: bytes, columns: tuple[str, ...], ids: Ids) -> ImageFeatures:
    """Read a line; raise ValueError if it is damaged."""
    values = line.rstrip(b"\r\n").split(b"\t")
    if len(values) != len(columns):
        raise ValueError(f"{len(values)} of {len(columns)} columns")
    row = dict(zip(columns, values, strict=True))
    # the first three columns have other names in LXMERT's layout
    name = (row.get("image_id") or row["img_id"]).decode()
    size = int(row.get("image_w") or row["img_w"]), int(row.get("image_h") or row["img_h"])
    features = _decode(row, "features", "<f4").astype(np.float32)
    boxes = _decode(row, "boxes", "<f4", width=4).astype(np.float32)
    scores = class_ids = attribute_ids = attribute_scores = None
    if "objects_id" in row:
        scores = _decode(row, "objects_conf", "<f4", width=1)[:, 0].astype(np.float32)
        class_ids = _decode(row, "objects_id", "<i8", width=1)[:, 0].astype(np.int32)
        attribute_ids = _decode(row, "attrs_id", "<i8")[:, 0].astype(np.int32)
        if attribute_ids.min() < 0:  # marks unknown attributes
            attribute_ids = None
        confidence = _decode(row, "attrs_conf", "<f4")[:, 0].astype(np.float32)
        if attribute_ids is not None and confidence.any():  # zeros mark unknown confidence
            attribute_scores = confidence
    regions = make_regions(
        boxes,
        features,
        size=size,
        scores=scores,
        class_ids=class_ids,
        attribute_ids=attribute_ids,
        attribute_scores=attribute_scores,
    )
    return ImageFeatures(ids(name), regions)


def _decode(
    row: Mapping[str, bytes], name: str, dtype: str, *, width: int | None = None
) -> NDArray[np.generic]:
    """Decode a base64 column to (num_boxes, width); raise ValueError for a wrong size."""
    count, data = int(row["num_boxes"]), base64.b64decode(row[name], validate=True)
    size = np.dtype(dtype).itemsize * count
    if count < 1 or not data or len(data) % size or (width and len(data) != size * width):
        raise ValueError(f"{name} has {len(data)} bytes, which do not fit {count} boxes")
    return np.frombuffer(data, dtype).reshape(count, -1)


def _encode(values: NDArray[np.generic], dtype: str) -> bytes:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes())
