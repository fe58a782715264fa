"""Image files, opened in a few known formats only, regular ones of bounded size, header first."""

import io
import warnings
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image, UnidentifiedImageError, features

from a2cap.data.errors import A2Error, InputError, UnreadableError
from a2cap.data.files.system import open_regular

_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")  # Pillow reads MPO as JPEG
FORMAT_NAMES = "JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF or MPO"
PIXEL_LIMIT = 100_000_000
"""Pixels above which an image is rejected before decoding.

Decoding so many takes up to 0.9 GB, of WebP 1.7 GB, beside the file's own bytes.
"""
LARGEST_IMAGE = 1 << 30
"""Bytes of a local file above which it is not read: 100 million pixels of 8 bytes are fewer."""

_HEAD = 64
"""First bytes, which tell the format."""
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}
_OTHER_CONTENT = {
    b"\0\0\0\x0cjP  ": "JPEG 2000; save it as JPEG",
    b"\xff\x4f\xff\x51": "JPEG 2000; save it as JPEG",
    b"\xff\x0a": "JPEG XL; save it as JPEG",
    b"\0\0\0\x0cJXL ": "JPEG XL; save it as JPEG",
    b"%PDF": "PDF; save its pages as JPEG",
    b"%!PS": "PostScript; save it as JPEG",
    b"PK": "a ZIP archive; unpack it",
    b"\x1f\x8b": "a gzip file; unpack it",
    b"version https://git-lfs": 'a Git LFS pointer; run "git lfs pull"',
    b"<svg": "SVG; save it as JPEG",
    b"<?xml": "XML; get the file again",
    b"<": "a web page; get the file again",
    b"\xff\xd8\xff": "JPEG without a readable header; get the file again",
    b"\x89PNG": "PNG without a readable header; get the file again",
    b"GIF8": "GIF without a readable header; get the file again",
    b"BM": "BMP without a readable header; get the file again",
    b"II*\0": "TIFF without a readable header; get the file again",
    b"MM\0*": "TIFF without a readable header; get the file again",
    b"RIFF": "WebP, audio or video without a readable header; get the file again",
}
"""First bytes of files that are not opened -> what they are, and what to do."""
_READ_AT_ONCE = 1 << 24
"""Bytes of a file that is read before its header is checked: most photographs are smaller."""
_QUARTER_TURNS = (5, 6, 7, 8)
"""Orientations in EXIF that exchange width and height."""


def open_image(source: Path | BinaryIO) -> Image.Image:
    """Open an image by its header, whatever its suffix; the pixels are decoded when used.

    Raises UnidentifiedImageError, an OSError, for a file in another format, ImportError for HEIC
    without pillow-heif, InputError for a path that is not a regular file.
    """
    # Pillow's own limits are a warning at 89 million pixels and an error at 179 million. Not within
    # `catch_warnings`: TIFF warns when its pixels are decoded, and other threads decode meanwhile.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    # Left to itself, Pillow knows 40 formats by content and runs Ghostscript on PostScript.
    formats = list(_FORMATS)
    if _is_heic(_head(source)):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
        formats = ["HEIF"]
    return Image.open(source, formats=formats)


def require_size(image: Image.Image, name: str) -> None:
    """Raise InputError for an image above PIXEL_LIMIT, whose pixels are not decoded."""
    # OpenCV allocates gigabytes for a header of 30,000 x 30,000 pixels
    if image.width * image.height > PIXEL_LIMIT:
        raise InputError(
            f"image {name!r} is too large: {image.width} x {image.height} pixels, "
            f"limit {PIXEL_LIMIT // 1_000_000} million; scale it down"
        )


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image as EXIF turns it, read from the file's header alone.

    Raises InputError where the header is not readable, UnreadableError where the system cannot read
    it; the rest of the file may still be damaged.
    """
    try:
        # opened here, because Pillow leaves the file open when a read fails
        with open_regular(path) as file, open_image(file) as image:
            is_turned = image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
            return (image.height, image.width) if is_turned else image.size
    except A2Error:
        raise
    except Exception as error:  # each format's header reader raises types of its own
        raise _known_error(path.name, error) or InputError(
            f"image {path.name!r} has no readable header; get the file again, as {FORMAT_NAMES}"
        ) from error


def read_image_file(path: Path) -> bytes:
    """Return the bytes of an image file.

    Raises InputError for what is not a regular file, a file above LARGEST_IMAGE, and a large file
    without the header of an image; UnreadableError where the system cannot read it.
    """
    try:
        with open_regular(path) as file:
            start = file.read(_READ_AT_ONCE)
            if len(start) < _READ_AT_ONCE:
                return start
            _require_image(file, path.name)
            file.seek(0)
            content = file.read(LARGEST_IMAGE + 1)
    except (OSError, MemoryError) as error:
        raise system_failure(path.name, error) or error from error
    if len(content) > LARGEST_IMAGE:  # it has grown
        raise _too_many_bytes(path.name, len(content))
    return content


def _require_image(file: BinaryIO, name: str) -> None:
    """Raise InputError unless a file has the header and the size of an image that can be read."""
    if (size := file.seek(0, io.SEEK_END)) > LARGEST_IMAGE:
        raise _too_many_bytes(name, size)
    try:
        file.seek(0)
        require_size(open_image(file), name)
    except A2Error:
        raise
    except Exception as error:  # each format's header reader raises types of its own
        file.seek(0)
        raise image_error(name, error, file.read(_HEAD)) from error


def _too_many_bytes(name: str, size: int) -> InputError:
    return InputError(
        f"image {name!r} is too large: {size / 2**30:.1f} GiB, limit {LARGEST_IMAGE >> 30} GiB; "
        "scale it down, or save it as JPEG"
    )


def image_error(name: str, error: Exception, encoded: bytes) -> A2Error:
    """Return the error of an image that was not opened or decoded; encoded: its bytes, or first."""
    if (failure := _known_error(name, error)) is not None:
        return failure
    if isinstance(error, Image.DecompressionBombError):
        limit = PIXEL_LIMIT // 1_000_000
        problem = f"is too large: more than {limit} million pixels; scale it down"
    elif isinstance(error, UnidentifiedImageError):
        problem = f"is not in a supported format: it is {_content(encoded[:_HEAD])}"
    else:
        reason = " ".join(str(error).split())  # libheif ends its lines
        problem = f"cannot be decoded: {reason}; get the file again"
    return InputError(f"image {name!r} {problem}")


def _known_error(name: str, error: Exception) -> A2Error | None:
    """Return the error of a failed system or a missing package, None for damage."""
    if isinstance(error, ImportError):
        return InputError(
            f"image {name!r} is HEIC, which needs pillow-heif; install it with "
            'pip install "a2cap[heic]", or save the image as JPEG'
        )
    return system_failure(name, error)


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


def _head(source: Path | BinaryIO) -> bytes:
    if isinstance(source, Path):
        with open_regular(source) as file:
            return file.read(_HEAD)
    head = source.read(_HEAD)
    source.seek(0)
    return head


def _brands(head: bytes) -> set[bytes]:
    """Return the brands of the container that phones, browsers and cameras write."""
    if head[4:8] != b"ftyp":
        return set()
    box = head[: int.from_bytes(head[:4], "big")]
    return {box[8:12], *(box[at : at + 4] for at in range(16, len(box), 4))}


def _is_heic(head: bytes) -> bool:
    brands = _brands(head)
    return bool(brands & _HEIC_BRANDS) and not brands & _AVIF_BRANDS


def _content(head: bytes) -> str:
    """Describe the content of a file that is not opened, and what to do."""
    if brands := _brands(head):
        return _container(head, brands)
    for start, description in _OTHER_CONTENT.items():
        if head.lstrip().lower().startswith(start.lower()):
            return description
    text = head.decode("utf-8", errors="replace").rstrip("�")
    if text.isprintable() or not set(head) & set(range(9)):
        return f"text, {' '.join(text.split())[:20]!r}…; get the file again"
    return f"of an unknown kind ({head[:4].hex(' ')}); get the file again, as {FORMAT_NAMES}"


def _container(head: bytes, brands: set[bytes]) -> str:
    if not brands & (_HEIC_BRANDS | _AVIF_BRANDS):
        return "a video; save a frame of it as JPEG"
    if not _is_heic(head) and not features.check("avif"):
        return "AVIF, which this Pillow does not read; install one from PyPI"
    name = "HEIC" if _is_heic(head) else "AVIF"
    return f"{name} without a readable header; get the file again"
