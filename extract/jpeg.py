"""Decoding of JPEG by OpenCV, in which a warning of libjpeg is an error.

libjpeg decodes damaged data to wrong pixels, and writes a warning without the file's name to the
standard error of the process. That is read here, for one image at a time.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from threading import Lock

import cv2
import numpy as np
from numpy.typing import NDArray

_STANDARD_ERROR = 2
_DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file", "Inconsistent progression")
_HARMLESS = "bad ICC marker"
_one_at_a_time = Lock()


def decode_jpeg(encoded: bytes) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8 in blue, green, red; raise ValueError if the data is damaged."""
    with _one_at_a_time, _standard_error() as lines:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    damage = [line for line in lines if line.startswith(_DAMAGE) and _HARMLESS not in line]
    for line in lines:
        if line not in damage:  # of another thread
            sys.stderr.write(f"{line}\n")
    if damage:
        raise ValueError(damage[0][0].lower() + damage[0][1:])
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    return np.asarray(pixels, np.uint8)


@contextmanager
def _standard_error() -> Iterator[list[str]]:
    """Yield a list that has the lines of standard error after the block."""
    lines: list[str] = []
    try:
        original = os.dup(_STANDARD_ERROR)
    except OSError:  # a service may have closed it
        yield lines
        return
    try:
        with TemporaryFile() as caught:
            os.dup2(caught.fileno(), _STANDARD_ERROR)
            try:
                yield lines
            finally:
                os.dup2(original, _STANDARD_ERROR)
                caught.seek(0)
                lines += caught.read().decode(errors="replace").splitlines()
    finally:
        os.close(original)
