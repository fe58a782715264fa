"""Image files as pixels, exactly as caffe's extractor read them.

JPEG is decoded by libjpeg-turbo, as OpenCV does, but damage of which it only warns is an error:
the pixels would be wrong.

Orientation in EXIF is applied, transparent pixels are laid on white, and the first frame of an
animation is used.
"""

import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from simplejpeg import decode_jpeg

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.image_file import image_error, open_image, read_image_file, require_size

_BYTES_PER_PIXEL = 9
# libwebp keeps two more canvases of RGBA, decoders of video frames have planes of 16 bits
_BYTES_PER_PIXEL_OF = {"WEBP": 17, "AVIF": 14, "HEIF": 14}
_STRIP = 2**20  # pixels converted at once

_JPEG_FORMATS = {"JPEG", "MPO"}
_HARMLESS = ("Invalid SOS parameters", "Adobe color transform", "JFIF revision")
"""Parts of libjpeg's warnings about headers, which leave the pixels right."""
_WITHOUT_PROFILE = b"\xff\xe2", b"\xff\xef"
"""Marker of a colour profile, and one of the same length that libjpeg skips."""
_TURNS: dict[object, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}
"""Orientation in EXIF -> the turn that makes the image upright."""
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # of a segment, not within pixels
_END_OF_JPEG = 0xD9
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}


def read_image(path: Path) -> NDArray[np.uint8]:
    """Return the pixels of an image file, (H, W, 3) uint8 in blue, green, red.

    Raises InputError, naming the file without its folder, where it is empty, damaged, in an
    unsupported format, or above PIXEL_LIMIT; UnreadableError where the system cannot read it.
    """
    return decode_image(read_image_file(path), path.name)


def decode_image(encoded: bytes, name: str) -> NDArray[np.uint8]:
    """Return the pixels of an image file in memory, as `read_image` does."""
    if not encoded:
        raise InputError(f"image {name!r} is empty: 0 bytes; get the file again")
    try:
        image = open_image(io.BytesIO(encoded))
        require_size(image, name)  # before decoding
        return _decode(image, encoded)
    except A2Error:
        raise
    except Exception as error:  # each format's reader and decoder raise types of their own
        raise image_error(name, error, encoded) from error


def _decode(image: Image.Image, encoded: bytes) -> NDArray[np.uint8]:
    # Libraries report memory that runs out as damage. This allocates, without touching a page.
    needed = _BYTES_PER_PIXEL_OF.get(image.format or "", _BYTES_PER_PIXEL)
    np.empty(needed * image.width * image.height, np.uint8)
    # OpenCV's JPEG decoder made the published features; Pillow's differs by some grey levels.
    if image.format in _JPEG_FORMATS and image.mode in {"RGB", "L"}:
        if not _is_complete(encoded):
            raise ValueError("image file is truncated")  # libjpeg would return half of it
        return _decode_jpeg(encoded, _orientation(image))
    ImageOps.exif_transpose(image, in_place=True)
    bgr = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP // image.width)
    # in strips: each conversion and each copy of a whole image would be 300 MB more
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        bgr[top : top + rows] = to_rgb(strip)[:, :, ::-1]
    return bgr


def _decode_jpeg(encoded: bytes, orientation: object) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG, turned upright; ValueError where libjpeg warns of damage."""
    try:
        pixels: NDArray[np.uint8] = decode_jpeg(encoded, colorspace="BGR", strict=True)
    except ValueError as error:
        if "bad ICC marker" in str(error):  # pixels do not contain a marker of segments
            return _decode_jpeg(encoded.replace(*_WITHOUT_PROFILE), orientation)
        if not any(warning in str(error) for warning in _HARMLESS):
            raise ValueError(str(error)[0].lower() + str(error)[1:]) from error
        return np.asarray(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR))
    turn = _TURNS.get(orientation)
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


def _orientation(image: Image.Image) -> object:
    """Return the orientation in EXIF, None if it has none or its EXIF is damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged EXIF, whose pixels are whole
        try:
            return image.getexif().get(ExifTags.Base.Orientation)
        except Exception:  # EXIF readers raise types of their own
            return None


def _is_complete(jpeg: bytes) -> bool:
    """Return whether the end marker of the first image of a JPEG is reached."""
    at = 2
    while (marker := _JPEG_MARKER.search(jpeg, at)) is not None:
        at = marker.end()
        if jpeg[at - 1] == _END_OF_JPEG:
            return True
        at += int.from_bytes(jpeg[at : at + 2], "big")  # a thumbnail has an end marker too
    return False


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8, transparent pixels laid on white; ValueError above 16 bits."""
    if image.mode.startswith("I"):
        gray = np.asarray(image).astype(np.int64)
        if gray.min() < 0 or gray.max() > 65535:
            raise ValueError("its samples have more than 16 bits")
        # the high bytes, as OpenCV does; Pillow's convert clips at 255
        return np.repeat((gray >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("its samples are fractions")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        image = Image.alpha_composite(ground, layer)
    return np.asarray(image.convert("RGB"))
