"""The record of one image in the feature store.

A record is a safetensors buffer, which cannot contain code, followed by its XXH3 checksum, because
LMDB itself does not detect a flipped bit. XXH3 reads memory 50 times as fast as zlib's crc32.
The buffer is written and read here, because the package safetensors copies it, and a copy of 150 kB
takes several times as long as its checksum.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_digest

from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.relation_file import check_relations
from a2cap.data.image_ids import LONGEST_ID
from a2cap.data.regions import Regions

FeatureType = Literal["float16", "float32"]

RecordBytes = tuple[memoryview, memoryview]
"""Key and value in the memory of LMDB."""

CHECKSUM_SIZE = 8
"""Bytes of the checksum at the end of a record."""
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
}
"""Types of a record by their names in safetensors, in the order of their arrays."""
_LARGEST_FLOAT16 = 65504.0
_SUSPECT = {"float16": (np.uint16, 0x7FFF, 0x7BFF), "float32": (np.uint32, 0x7FFFFFFF, 0x7F800000)}
"""Integer type, bits of the magnitude, and the smallest of magnitudes that are checked closely:
those that are not finite, and the largest of float16, to which values outside its range round."""


def record_key(image_id: str) -> bytes:
    """Return the key of an image, its id in UTF-8; raise StoreError if LMDB cannot store it."""
    try:
        key = image_id.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"image id {image_id!r} is not UTF-8; rename the image") from error
    if not 1 <= len(key) <= LONGEST_ID:
        raise StoreError(
            f"image id {image_id!r} has {len(key)} bytes; rename the image to 1 to {LONGEST_ID}"
        )
    return key


def encode_regions(regions: Regions, dtype: str, image_id: str = "unnamed") -> bytes:
    """Encode the regions of one image, with features as `dtype`.

    Raises StoreError, naming the image, for wrong shapes, no regions, values that are not finite,
    and features outside the range of float16 if that is the dtype.
    """
    if dtype not in ("float16", "float32"):
        raise StoreError(f"feature dtype is {dtype!r}; choose 'float16' or 'float32'")
    _check_shapes(regions, image_id)
    with np.errstate(over="ignore"):  # features beyond float16 become infinite, found below
        features = _contiguous(regions.features, dtype)
    _check_values(regions, features, image_id)
    arrays = {
        "boxes": _contiguous(regions.boxes, "float32"),
        "features": features,
        "scores": _contiguous(regions.scores, "float32"),
        "class_ids": _contiguous(regions.class_ids, "int32"),
        "size": np.array([regions.width, regions.height], dtype=np.int32),
    }
    if regions.attribute_ids is not None:
        arrays["attribute_ids"] = _contiguous(regions.attribute_ids, "int32")
    if regions.attribute_scores is not None:
        arrays["attribute_scores"] = _contiguous(regions.attribute_scores, "float32")
    if regions.relations is not None:
        arrays["relations"] = _contiguous(regions.relations, "int32")
    return _packed(arrays)


def decode_regions(value: bytes | bytearray, image_id: str) -> Regions:
    """Decode a record; features keep their stored dtype, arrays share the memory of a bytearray.

    Raises StoreError, naming the image, for a wrong checksum or another content.
    """
    check_record(value, image_id)
    try:
        # arrays are writable; those of immutable bytes would not be
        record = memoryview(bytearray(value) if isinstance(value, bytes) else value)
        start = 8 + int.from_bytes(record[:8], "little")
        data = record[start:-CHECKSUM_SIZE]
        arrays = {
            name: np.frombuffer(data[first:last], dtype).reshape(shape)
            for name, dtype, shape, first, last in _layout(bytes(record[8:start]))
        }
        width, height = (int(side) for side in arrays["size"])
        required = {name: arrays[name] for name in ("boxes", "features", "scores", "class_ids")}
        return Regions(
            **required,
            attribute_ids=arrays.get("attribute_ids"),
            attribute_scores=arrays.get("attribute_scores"),
            width=width,
            height=height,
            relations=arrays.get("relations"),
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"record of image {image_id!r} is not of this version: {error}; "
            'run "a2 extract --force"'
        ) from error


def _packed(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return what `safetensors.numpy.save` does, and its checksum."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    order = [*_DTYPES.values()]
    header, end = {}, 0
    ordered = sorted(arrays, key=lambda name: (order.index(arrays[name].dtype), name))
    for name in ordered:
        array, start = arrays[name], end
        end += array.nbytes
        dtype, shape = names[array.dtype], array.shape
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays start at a multiple of 8 bytes
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    parts += [arrays[name].data for name in ordered]
    checksum = xxh3_64()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])


@lru_cache(maxsize=64)  # images of equally many regions have equal headers
def _layout(header: bytes) -> tuple[tuple[str, np.dtype[Any], tuple[int, ...], int, int], ...]:
    """Return the name, dtype, shape, start and end of each array."""
    return tuple(
        (name, _DTYPES[entry["dtype"]], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in json.loads(header).items()
    )


def check_record(value: bytes | bytearray | memoryview, image_id: str) -> None:
    """Raise StoreError, naming the image, unless a record matches its checksum."""
    body, checksum = memoryview(value)[:-CHECKSUM_SIZE], bytes(value[-CHECKSUM_SIZE:])
    actual = xxh3_64_digest(body)
    if actual != checksum:
        raise StoreError(
            f"record of image {image_id!r} is damaged: checksum {actual.hex()}, "
            f'expected {checksum.hex()}; run "a2 extract --force"'
        )


def checked_records(records: Iterable[RecordBytes]) -> Iterator[RecordBytes]:
    """Yield the records; raise StoreError at one that does not match its checksum."""
    for key, value in records:
        check_record(value, bytes(key).decode())
        yield key, value


def _contiguous(array: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    # safetensors copies the memory: strides must be in order and bytes little-endian
    return np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))


def _check_shapes(regions: Regions, image_id: str) -> None:
    count = len(regions.boxes)
    if count == 0:
        raise StoreError(f"image {image_id!r} has 0 regions; extract at least one per image")
    width = regions.features.shape[-1] if regions.features.ndim == 2 else 0
    expected = {
        "boxes": (regions.boxes, (count, 4)),
        "features": (regions.features, (count, width or "F")),
        "scores": (regions.scores, (count,)),
        "class_ids": (regions.class_ids, (count,)),
        "attribute_ids": (regions.attribute_ids, (count,)),
        "attribute_scores": (regions.attribute_scores, (count,)),
    }
    for name, (array, shape) in expected.items():
        if array is not None and array.shape != shape:
            raise StoreError(
                f"{name} of image {image_id!r} have shape {array.shape}, expected {shape}; "
                "fix the extractor"
            )
    if regions.relations is not None:
        try:
            check_relations(regions.relations, count)
        except InputError as error:
            raise StoreError(f"relations of image {image_id!r}: {error}") from error
    if min(regions.width, regions.height) < 1:
        raise StoreError(
            f"size of image {image_id!r} is {regions.width}x{regions.height}; "
            "give the size of the original image in pixels"
        )


def _check_values(regions: Regions, features: NDArray[np.generic], image_id: str) -> None:
    """Raise StoreError for values that are not finite; features: as they will be stored."""
    arrays = {"box": regions.boxes, "score": regions.scores}
    if regions.attribute_scores is not None:
        arrays["attribute score"] = regions.attribute_scores
    # integers are compared in a tenth of the time that isfinite takes in float16
    kind, magnitude, suspect = _SUSPECT[features.dtype.name]
    is_suspect = ((features.view(kind) & kind(magnitude)) >= suspect).any()
    if is_suspect:
        arrays = {"feature": regions.features, **arrays}
    for name, values in arrays.items():
        finite = np.isfinite(values)
        if not finite.all():
            raise StoreError(
                f"{name} of image {image_id!r} is not finite: {values[~finite][0]}; "
                "check the extractor's weights and the image"
            )
    largest = np.abs(regions.features).max() if is_suspect else 0.0
    if largest > _LARGEST_FLOAT16 and features.dtype == np.float16:
        raise StoreError(
            f"feature of image {image_id!r} exceeds float16: {largest} > 65504; "
            "store features as float32"
        )
