"""Image ids, derived from file names and stable across stages and machines."""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from a2cap.data.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
LONGEST_ID = 511
"""Maximum length of an id in bytes: LMDB's limit for a key."""

_NUMBERED_STEM = re.compile(r"(?:COCO_\w+_)?([0-9]{1,12})")


def image_id(relative: PurePosixPath | str) -> str:
    """Return the id of the image at a POSIX path relative to the image folder.

    A stem of 1 to 12 digits, with or without COCO's prefix, is padded to 12 digits, so that the
    2014 and the 2017 name of an image give the same id. The id of any other path is the path
    without suffix, as NFC. Raises InputError for a path that is absolute, leaves the folder, or
    cannot be a key.
    """
    path = PurePosixPath(relative)
    _check_path(path)
    numbered = _NUMBERED_STEM.fullmatch(path.stem)
    if numbered:
        return numbered[1].zfill(12)
    # macOS decomposes "é" in file names, Linux keeps what it was given
    identity = unicodedata.normalize("NFC", str(path.with_suffix("")))
    size = len(identity.encode())
    if size > LONGEST_ID:
        raise InputError(
            f"image path too long: {identity[:40]!r}… has {size:,} bytes, "
            f"{LONGEST_ID} fit in an id; shorten it"
        )
    return identity


def results_id(image_id: str) -> int | str:
    """Return the id as written in results JSON: an integer if `image_id` is decimal."""
    # a longer number with leading zeros stays a string, so that different ids stay different
    decimal = image_id.isascii() and image_id.isdigit()
    if decimal and (len(image_id) == 12 or not image_id.startswith("0")):
        return int(image_id)
    return image_id


def sample_ids(image_ids: Sequence[str], count: int = 5) -> str:
    """Return the first `count` ids and the number of the others, for a message."""
    rest = len(image_ids) - count
    return ", ".join(image_ids[:count]) + (f" and {rest:,} more" if rest > 0 else "")


def find_images(folder: Path) -> dict[str, Path]:
    """Return all images below `folder` by id, sorted by id.

    Skips hidden files and symbolic links that lead out of `folder`. Raises InputError if two files
    have the same id or if there is no image.
    """
    found: dict[str, Path] = {}
    for relative in list_images(folder):
        identity = image_id(relative.as_posix())
        path = folder / relative
        if identity in found:
            first, second = sorted((str(found[identity]), str(path)))
            raise InputError(
                f"two images have the id {identity!r}: {first!r} and {second!r}; "
                "rename or remove one"
            )
        found[identity] = path
    return dict(sorted(found.items()))


def list_images(folder: Path) -> list[Path]:
    """Return the paths of all images below `folder`, relative to it and sorted within each folder.

    Skips the same files as `find_images`; raises InputError if there is no image.
    """
    root = Path(os.path.realpath(folder))
    found = [Path(relative) for relative in _relative_files(folder, root, PurePosixPath())]
    if not found:
        raise InputError(
            f"no images in {str(folder)!r} (searched for {' '.join(sorted(IMAGE_SUFFIXES))}, "
            "symbolic links that lead out are skipped); check the folder"
        )
    return found


def _relative_files(folder: Path, root: Path, relative: PurePosixPath) -> Iterator[PurePosixPath]:
    try:
        with os.scandir(folder / relative) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        name = str(folder / relative)
        raise InputError(
            f"cannot read the folder {name!r} ({error.strerror}); check data.images"
        ) from error
    for entry in entries:
        inside = relative / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _relative_files(folder, root, inside)
        elif inside.suffix.lower() in IMAGE_SUFFIXES and _is_file_below(entry, root):
            yield inside


def _is_file_below(entry: os.DirEntry[str], root: Path) -> bool:
    # only links are resolved: realpath costs a system call per folder of the path
    if not entry.is_symlink():
        return entry.is_file()
    return entry.is_file() and Path(os.path.realpath(entry)).is_relative_to(root)


def _check_path(path: PurePosixPath) -> None:
    name = str(path)
    if not path.name:
        raise InputError(f"no file name in the image path {name!r}; name a file")
    if path.is_absolute():
        raise InputError(f"image path is absolute: {name!r}; give it relative to the image folder")
    if ".." in path.parts:
        raise InputError(f"image path leaves the image folder: {name!r}; give it without '..'")
    if "\0" in name:
        raise InputError(f"image path contains a NUL character: {name!r}; rename the file")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"image path is not UTF-8: {name!r}; rename the file") from error
