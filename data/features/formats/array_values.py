"""Values of third-party files as arrays, numbers and text: numpy's, or base64 as in TSV.

Base64 does not state the type of its numbers. Bytes of float16 read as float32 are half as many
numbers, of a magnitude that their exponents make up. Of the features of caffe, the base-2 logarithm
of the magnitude deviates by 3.2; read in the wrong type by 34 or more, or some are not finite.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from a2cap.data.box_check import ConventionError
from a2cap.data.errors import InputError
from a2cap.data.features.formats.layouts import KNOWN_NAMES

Arrays = Mapping[str, object]
"""What a file has of an image, by name: arrays, numbers, texts, and arrays in base64."""
NumberType = Literal["float32", "float16", "float64"]
NUMBER_TYPES: tuple[NumberType, ...] = get_args(NumberType)

NUMBERS = {"features": 0, "boxes": 4, "probabilities": 0} | {
    **dict.fromkeys(("scores", "class_ids", "attribute_ids", "attribute_scores"), 1)
}
"""Numbers of a region in each field of a layout; 0 for those of any width."""

_SAMPLE = 1 << 15
"""Bytes of an image that are examined."""
_FEWEST = 64
"""Numbers that are not zero, without which nothing is concluded."""
_RATIO, _LARGEST = 4, 8
"""Factor by which the deviation in another type has to be smaller, and its limit: 1.6 is that of
normally distributed numbers."""


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


def as_array(
    value: object, name: str, field: str, count: int | None, number_type: NumberType
) -> NDArray[np.generic]:
    """Return the array of a field, (R, N) or (R,); raise ValueError if its bytes do not fit.

    count: R, which base64 needs; number_type: of features in base64.
    """
    numbers = NUMBERS[field]
    if not isinstance(value, bytes | str):
        values = np.asarray(value)
        while values.ndim > (1 if numbers == 1 else 2) and values.shape[0] == 1:
            values = values[0]
        return values
    if count is None:
        raise InputError(f"{name} is text without a number of boxes; store it as an array")
    data = base64.b64decode(as_text(value), validate=True)
    dtype = np.dtype("<i8" if field.endswith("_ids") else "<f4")
    if field == "features":
        dtype = np.dtype(number_type).newbyteorder("<")
    elif field == "boxes" and len(data) in (8 * count, 32 * count):  # of float16 or float64
        dtype = np.dtype(f"<f{len(data) // count // 4}")
    columns, rest = divmod(len(data), dtype.itemsize * max(count, 1))
    if count < 1 or not columns or rest or columns != (numbers or columns):
        raise ValueError(f"{name} has {len(data)} bytes, which do not fit {count} boxes")
    array: NDArray[np.generic] = np.frombuffer(data, dtype).reshape(count, columns)
    return array[:, 0] if numbers == 1 else array


def require_type(features: NDArray[np.generic], number_type: NumberType) -> None:
    """Raise ConventionError if features (R, F) from bytes are numbers of another type."""
    bytes_per_region = features.nbytes // len(features)
    sample = features.tobytes()[: min(_SAMPLE, features.nbytes // 8 * 8)]
    deviation = _deviation(sample, number_type)
    widths = {t: bytes_per_region / np.dtype(t).itemsize for t in NUMBER_TYPES}
    for other, width in widths.items():
        if deviation is None or other == number_type or width % 1:
            continue
        likely = _deviation(sample, other)
        if likely is not None and likely < min(_LARGEST, deviation / _RATIO):
            raise ConventionError(
                f"its features are {len(features)} regions of {width:,.0f} numbers in {other}, not "
                f"of {widths[number_type]:,.0f} in {number_type}; convert with --source-dtype "
                f"{other}"
            )


def _deviation(data: bytes, number_type: NumberType) -> float | None:
    """Return the deviation of log2 of the magnitudes; None if there are few.

    It is infinite if a number is not finite.
    """
    dtype = np.dtype(number_type).newbyteorder("<")
    values: NDArray[np.floating] = np.abs(np.frombuffer(data, dtype))
    if not np.isfinite(values).all():
        return np.inf
    values = values[values > 0].astype(np.float64)
    return float(np.log2(values).std()) if len(values) >= _FEWEST else None


def without_padding(
    values: dict[str, NDArray[np.generic]], count: int | None, name: str
) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of regions, of which a file may state how many are not padding.

    Raises InputError if the number, called `name`, disagrees with the rows. Rows of zeros in a box
    without area are padding too, also without a number.
    """
    features, boxes = values["features"], values.get("boxes")
    rows = len(features)
    count = rows if count is None else count
    if count > rows or features[count:].any():
        problem = f"there are {rows} regions" if count > rows else f"{rows} regions have features"
        raise InputError(f"{name} is {count}, but {problem}; create the file again")
    kept = np.arange(rows) < count
    if boxes is not None and boxes.ndim == features.ndim == 2 and len(boxes) == rows:
        is_empty = ~features.any(axis=1)
        if is_empty.any():
            kept &= ~(is_empty & (boxes[:, :2] == boxes[:, 2:4]).all(axis=1))
    if kept.all():
        return values
    if not kept.any():
        raise InputError("all its regions are zeros in boxes without area; extract it again")
    return {field: array[kept] if len(array) == rows else array for field, array in values.items()}
