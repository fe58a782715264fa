"""The one check of features in bytes: that they are of the type in which they are read.

Bytes of float16 read as float32 are half as many numbers, of a magnitude that their exponents make
up. Of the features of caffe, the base-2 logarithm of the magnitude deviates by 3.2; read in the
wrong type by 34 or more, or some of them are not finite.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from a2cap.data.box_check import ConventionError

NumberType = Literal["float32", "float16", "float64"]
NUMBER_TYPES: tuple[NumberType, ...] = get_args(NumberType)

_SAMPLE = 1 << 15
"""Bytes of an image that are examined."""
_FEWEST = 64
"""Numbers that are not zero, without which nothing is concluded."""
_RATIO, _LARGEST = 4, 8
"""Factor by which the deviation in another type has to be smaller, and its limit: 1.6 is that of
normally distributed numbers."""


def require_type(data: bytes, count: int, number_type: NumberType) -> None:
    """Raise ConventionError if bytes of `count` regions are numbers of another type."""
    sample = data[: min(_SAMPLE, len(data) // 8 * 8)]
    deviation = _deviation(sample, number_type)
    for other in NUMBER_TYPES:
        fits = len(data) % (count * _bytes(other)) == 0
        if deviation is None or other == number_type or not fits:
            continue
        likely = _deviation(sample, other)
        if likely is not None and likely < min(_LARGEST, deviation / _RATIO):
            widths = {one: len(data) // count // _bytes(one) for one in NUMBER_TYPES}
            raise ConventionError(
                f"its features are {count} regions of {widths[other]:,} numbers in {other}, not of "
                f"{widths[number_type]:,} in {number_type}; convert with --source-dtype {other}"
            )


def _deviation(data: bytes, number_type: NumberType) -> float | None:
    """Return the deviation of log2 of the magnitudes; None if there are few.

    It is infinite if a number is not finite.
    """
    values: NDArray[np.floating] = np.abs(np.frombuffer(data, f"<f{_bytes(number_type)}"))
    if not np.isfinite(values).all():
        return np.inf
    values = values[values > 0].astype(np.float64)
    return float(np.log2(values).std()) if len(values) >= _FEWEST else None


def _bytes(number_type: NumberType) -> int:
    return np.dtype(number_type).itemsize
