"""Image files, opened in a few known formats only."""

import warnings
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image

from a2cap.data.errors import InputError, UnreadableError

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow reads MPO as JPEG
FORMAT_NAMES = "JPEG, PNG, WebP, GIF, BMP, TIFF or MPO"
_QUARTER_TURNS = (5, 6, 7, 8)
"""Orientations in EXIF that exchange width and height."""


def open_image(source: Path | BinaryIO) -> Image.Image:
    """Open an image by its header, whatever its suffix; the pixels are decoded when used.

    Raises UnidentifiedImageError, an OSError, for a file in another format.
    """
    with warnings.catch_warnings():
        # Pillow's own limits are a warning at 89 million pixels and an error at 179 million.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Left to itself, Pillow knows 40 formats by content and runs Ghostscript on PostScript.
        return Image.open(source, formats=_FORMATS)


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image as EXIF turns it, read from the file's header alone.

    Raises InputError where the header is not readable, UnreadableError where the system cannot read
    it; the rest of the file may still be damaged.
    """
    try:
        # opened here, because Pillow leaves the file open when a read fails
        with path.open("rb") as file, open_image(file) as image:
            is_turned = image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
            return (image.height, image.width) if is_turned else image.size
    except Exception as error:  # each format's header reader raises types of its own
        raise system_failure(path.name, error) or InputError(
            f"image {path.name!r} has no readable header; get the file again, as {FORMAT_NAMES}"
        ) from error


def read_image_file(path: Path) -> bytes:
    """Return the bytes of an image file; raise UnreadableError where the system cannot read it."""
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise system_failure(path.name, error) or error from error


def system_failure(name: str, error: Exception) -> UnreadableError | None:
    """Return the error of a failure of memory or the disk, None for damage of an image."""
    if isinstance(error, MemoryError):
        return UnreadableError(
            f"out of memory while reading image {name!r}; free memory, and run again"
        )
    if isinstance(error, OSError) and error.errno is not None:  # damage has no number
        return UnreadableError(
            f"cannot read image {name!r}: {error.strerror}; check the image folder"
        )
    return None
