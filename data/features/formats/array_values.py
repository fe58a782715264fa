"""Values of third-party files as arrays, numbers and text: numpy's, or base64 as in TSV."""

import base64
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import Arrays, ImageFeatures
from a2cap.data.features.formats.layouts import KNOWN_NAMES, Layout
from a2cap.data.features.formats.number_types import NumberType

MATRICES = ("features", "boxes", "probabilities")
"""Fields with a row per region; the others have a number per region."""
_NUMBERS = {"scores": 1, "class_ids": 1, "boxes": 4}
"""Numbers of a region in fields whose type is certain."""


def as_text(value: object) -> str:
    """Return a text or number of a file, without the b'' of bytes that Python printed."""
    if isinstance(value, np.ndarray):
        value = value.item()
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text[2:-1] if text[:2] in ("b'", 'b"') and text[-1:] == text[1] else text


def as_integer(value: object) -> int:
    """Return a whole number of a file, which may be a text or a float."""
    return round(float(as_text(value)))


def named_arrays(content: object) -> Arrays:
    """Return a dictionary with its names as text; raise ValueError for anything else."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{type(content).__name__} in place of a dictionary of arrays")
    return {as_text(name): value for name, value in content.items()}


def known_arrays(names: Iterable[str], load: Callable[[str], object]) -> Arrays:
    """Load the arrays that a layout has; None in place of others, of which a file may have many."""
    return {name: load(name) if name in KNOWN_NAMES else None for name in names}


def encoded_bytes(value: bytes | str) -> bytes:
    """Return the content of base64; raise ValueError if it is damaged."""
    data = value.encode() if isinstance(value, str) else value
    if data[:2] in (b"b'", b'b"'):
        data = data[2:-1]
    return base64.b64decode(data, validate=True)


def as_array(
    value: object, name: str, field: str, count: int | None, number_type: NumberType
) -> NDArray[np.generic]:
    """Return the array of a field, (R, N) or (R,); raise ValueError if its bytes do not fit.

    count: R, which base64 needs.
    number_type: of features in base64.
    """
    axes = 2 if field in MATRICES else 1
    if not isinstance(value, bytes | str):
        values = np.asarray(value)
        while values.ndim > axes and values.shape[0] == 1:
            values = values[0]
        return values
    if count is None:
        raise InputError(f"{name} is text without a number of boxes; store it as an array")
    data = encoded_bytes(value)
    dtype = _dtype(field, number_type, len(data) / max(count, 1))
    size = dtype.itemsize * count
    if (
        count < 1
        or not data
        or len(data) % size
        or len(data) != size * _NUMBERS.get(field, len(data) // size)
    ):
        raise ValueError(f"{name} has {len(data)} bytes, which do not fit {count} boxes")
    array: NDArray[np.generic] = np.frombuffer(data, dtype).reshape(count, -1)
    return array if axes == 2 else array[:, 0]


def _dtype(field: str, number_type: NumberType, bytes_per_region: float) -> np.dtype[np.generic]:
    if field == "features":
        return np.dtype(number_type).newbyteorder("<")
    if field == "boxes" and bytes_per_region in (8, 32):  # four of float16 or float64
        return np.dtype(f"<f{int(bytes_per_region) // 4}")
    return np.dtype("<i8" if field.endswith("_ids") else "<f4")


def without_padding(
    values: dict[str, NDArray[np.generic]], count: int | None, name: str
) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of regions, of which a file may state how many are not padding.

    Raises InputError if the number, called `name`, disagrees with the rows. Rows of zeros in a box
    without area are padding too, also without a number.
    """
    features, boxes = values["features"], values.get("boxes")
    rows = len(features)
    if count is not None and count > rows:
        raise InputError(f"{name} is {count}, but there are {rows} regions; create the file again")
    if count is not None and features[count:].any():
        raise InputError(
            f"{name} is {count}, but {rows} regions have features; create the file again"
        )
    kept = np.arange(rows) < (rows if count is None else count)
    if boxes is not None and boxes.ndim == 2 and len(boxes) == rows and features.ndim == 2:
        is_empty = ~features.any(axis=1)
        if is_empty.any():
            kept &= ~(is_empty & (boxes[:, :2] == boxes[:, 2:4]).all(axis=1))
    if kept.all():
        return values
    if not kept.any():
        raise InputError("all its regions are zeros in boxes without area; extract it again")
    return {field: array[kept] if len(array) == rows else array for field, array in values.items()}


def arrays_of(image: ImageFeatures, layout: Layout, prefix: str = "") -> dict[str, object]:
    """Return ids, numbers and little-endian arrays by the names of the layout.

    prefix: text before the id. Of class probabilities, only those that are known: a region's own.
    """
    regions = image.regions
    count, attributes = len(regions), regions.attribute_ids
    confidence = regions.attribute_scores
    probabilities = np.zeros((count, max(1, regions.class_ids.max() + 1)), "<f4")
    known = regions.class_ids >= 0
    probabilities[np.flatnonzero(known), regions.class_ids[known]] = regions.scores[known]
    fields = {
        "image_id": f"{prefix}{image.image_id}",
        "width": regions.width,
        "height": regions.height,
        "count": count,
        "features": regions.features.astype("<f4"),
        "boxes": regions.boxes.astype("<f4"),
        "scores": regions.scores.astype("<f4"),
        "class_ids": regions.class_ids.astype("<i8"),
        "attribute_ids": (np.full(count, -1) if attributes is None else attributes).astype("<i8"),
        "attribute_scores": (np.zeros(count) if confidence is None else confidence).astype("<f4"),
        "probabilities": probabilities,
    }
    return {
        getattr(layout, field): value for field, value in fields.items() if getattr(layout, field)
    }
