"""Image files, opened in a few known formats only."""

from pathlib import Path
from typing import BinaryIO

from PIL import Image

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow reads MPO as JPEG
FORMAT_NAMES = "JPEG, PNG, WebP, GIF, BMP, TIFF or MPO"


def open_image(source: Path | BinaryIO) -> Image.Image:
    """Open an image by its header, whatever its suffix; the pixels are decoded when used.

    Raises UnidentifiedImageError, an OSError, for a file in another format.
    """
    # Left to itself, Pillow recognises 40 formats by content and runs Ghostscript on PostScript.
    return Image.open(source, formats=_FORMATS)
