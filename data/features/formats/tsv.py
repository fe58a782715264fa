"""Tab-separated region features, base64 in a line per image, without a header.

Six columns are those of bottom-up-attention @514e561 (tools/generate_tsv.py), ten those of LXMERT
and airsplay/py-bottom-up-attention @85ec9b7, which names images by their file's stem and puts the
height first. Broken lines are common in published files: each is skipped with its reason.
"""

import base64
import binascii
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import ImageRegions, decimal_id, regions_of
from a2cap.data.image_ids import image_id as identity_of
from a2cap.data.regions import Regions

Columns = Literal["caffe", "lxmert"]

CAFFE_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LXMERT_COLUMNS = (
    "img_id",
    "img_h",
    "img_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    "num_boxes",
    "boxes",
    "features",
)
_BY_COUNT: dict[int, Columns] = {len(CAFFE_COLUMNS): "caffe", len(LXMERT_COLUMNS): "lxmert"}


class TsvSource:
    """The images of one file, line by line; a second line of one image is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = columns_of(path)

    def __iter__(self) -> Iterator[ImageRegions | SkippedItem]:
        seen: set[str] = set()
        width = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                item = _read_line(line, number, self.columns)
                if isinstance(item, ImageRegions):
                    width = width or item.regions.features.shape[1]
                    reason = _unlike_the_others(item, seen, width)
                    item = SkippedItem(f"line {number}", reason) if reason else item
                yield item

    def __len__(self) -> int:
        with self.path.open("rb") as file:
            return sum(1 for _ in file)


class TsvTarget:
    """Writes `path` by way of `path.partial`; a line that a killed run left unfinished is dropped.

    prefix: put before the number of an image in LXMERT's names, such as "COCO_val2014_".
    """

    def __init__(self, path: Path, *, columns: Columns, prefix: str = "") -> None:
        self._path = path
        self._columns: Columns = columns
        self._prefix = prefix
        self._partial = path.with_name(f"{path.name}.partial")
        self._done = _whole_lines(self._partial) if self._partial.exists() else set()
        self._file = self._partial.open("ab")

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._done

    def add(self, image_id: str, regions: Regions) -> None:
        """Appends a line."""
        caffe = self._columns == "caffe"
        fields = self._caffe(image_id, regions) if caffe else self._lxmert(image_id, regions)
        self._file.write(b"\t".join(fields) + b"\n")
        self._done.add(image_id)

    def finish(self) -> None:
        """Renames the finished file into place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)

    def close(self) -> None:
        """Keeps the lines for a later run."""
        self._file.close()

    def _caffe(self, image_id: str, regions: Regions) -> list[bytes]:
        numbers = (
            decimal_id(image_id, place=self._path),
            regions.width,
            regions.height,
            len(regions),
        )
        return [*(str(number).encode() for number in numbers), *_arrays(regions)]

    def _lxmert(self, image_id: str, regions: Regions) -> list[bytes]:
        count = len(regions)
        attributes = regions.attribute_ids
        ids = np.full(count, -1) if attributes is None else attributes
        return [
            f"{self._prefix}{image_id}".encode(),
            str(regions.height).encode(),
            str(regions.width).encode(),
            _encoded(regions.class_ids, "<i8"),
            _encoded(regions.scores, "<f4"),
            _encoded(ids, "<i8"),
            _encoded(np.zeros(count), "<f4"),
            str(count).encode(),
            *_arrays(regions),
        ]


def columns_of(path: Path) -> Columns:
    """Which of the two kinds of lines the file has; InputError where its first line is neither."""
    with path.open("rb") as file:
        first = file.readline()
    count = len(first.split(b"\t"))
    if count not in _BY_COUNT:
        raise InputError(
            f"first line of {path.name!r} has {count} columns, not {len(CAFFE_COLUMNS)} (caffe) or "
            f"{len(LXMERT_COLUMNS)} (LXMERT); name a file of one of them"
        )
    return _BY_COUNT[count]


def _unlike_the_others(item: ImageRegions, seen: set[str], width: int) -> str | None:
    """Why an image cannot stand beside those before it; remembers it where it can."""
    found = item.regions.features.shape[1]
    if item.image_id in seen:
        return f"a second line of image {item.image_id!r}"
    if found != width:
        return f"{found} numbers per region, not {width}"
    seen.add(item.image_id)
    return None


def _read_line(line: bytes, number: int, columns: Columns) -> ImageRegions | SkippedItem:
    names = CAFFE_COLUMNS if columns == "caffe" else LXMERT_COLUMNS
    values = line.rstrip(b"\r\n").split(b"\t")
    if len(values) != len(names):
        return SkippedItem(f"line {number}", f"{len(values)} of {len(names)} columns")
    try:
        return _image(dict(zip(names, values, strict=True)))
    except (ValueError, binascii.Error, InputError) as error:
        return SkippedItem(f"line {number}", str(error))


def _image(row: dict[str, bytes]) -> ImageRegions:
    name = (row.get("image_id") or row["img_id"]).decode()
    width = int(row.get("image_w") or row["img_w"])
    height = int(row.get("image_h") or row["img_h"])
    count = int(row["num_boxes"])
    features = _decoded(row["features"], "<f4", count, "features")
    described = "objects_id" in row
    attributes = _decoded(row["attrs_id"], "<i8", count, "attrs_id")[:, 0] if described else None
    regions = regions_of(
        _decoded(row["boxes"], "<f4", count, "boxes", width=4).astype(np.float32),
        features.astype(np.float32),
        width=width,
        height=height,
        scores=_column(row, "objects_conf", "<f4", count) if described else None,
        class_ids=_column(row, "objects_id", "<i8", count).astype(np.int32) if described else None,
        attribute_ids=None
        if attributes is None or attributes.min() < 0
        else attributes.astype(np.int32),
    )
    return ImageRegions(identity_of(f"{name}.jpg"), regions)


def _column(row: dict[str, bytes], name: str, dtype: str, count: int) -> NDArray[np.float32]:
    return _decoded(row[name], dtype, count, name, width=1)[:, 0]


def _decoded(
    encoded: bytes, dtype: str, count: int, name: str, *, width: int | None = None
) -> NDArray[np.float32]:
    """A base64 column as (count, width); ValueError where its bytes are another number."""
    data = base64.b64decode(encoded, validate=True)
    size = np.dtype(dtype).itemsize * max(count, 1)
    if count < 1 or not data or len(data) % size or (width and len(data) != size * width):
        raise ValueError(f"{name} has {len(data)} bytes, which are not {count} boxes")
    return np.frombuffer(data, dtype).reshape(count, -1)


def _arrays(regions: Regions) -> list[bytes]:
    return [_encoded(regions.boxes, "<f4"), _encoded(regions.features, "<f4")]


def _encoded(values: NDArray[np.generic], dtype: str) -> bytes:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes())


def _whole_lines(partial: Path) -> set[str]:
    """Ids in the lines of a file that end; the rest of it is cut off."""
    ids: set[str] = set()
    end = 0
    with partial.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            ids.add(identity_of(f"{line.split(bytes([9]), 1)[0].decode()}.jpg"))
            end += len(line)
        file.truncate(end)
    return ids
