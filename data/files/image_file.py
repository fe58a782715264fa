"""Image files, opened in a few known formats only."""

from pathlib import Path
from typing import BinaryIO

from PIL import Image

from a2cap.data.errors import UnreadableError

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow reads MPO as JPEG
FORMAT_NAMES = "JPEG, PNG, WebP, GIF, BMP, TIFF or MPO"


def open_image(source: Path | BinaryIO) -> Image.Image:
    """Open an image by its header, whatever its suffix; the pixels are decoded when used.

    Raises UnidentifiedImageError, an OSError, for a file in another format.
    """
    # Left to itself, Pillow recognises 40 formats by content and runs Ghostscript on PostScript.
    return Image.open(source, formats=_FORMATS)


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
