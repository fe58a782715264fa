"""Image ids, derived from file names and stable across stages and machines."""

import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from a2cap.data.errors import InputError
from a2cap.data.files.paths import did_you_mean

logger = logging.getLogger(__name__)

_READ_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
    | {".avif", ".heic", ".heif", ".hif"}
)
# of formats that a2 does not read: their files are listed, so that each is reported
IMAGE_SUFFIXES = _READ_SUFFIXES | {".jp2", ".j2k", ".jpx"}
LONGEST_ID = 511
"""Maximum length of an id in bytes: LMDB's limit for a key."""

IdRule = Literal["number", "path"]
"""number: a stem of digits is the id alone; path: every id is a path."""

_NAMED_TOGETHER = 20
_FIRST_BYTES = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8|BM|II\*\0|MM\0\*|RIFF....WEBP"
    rb"|....ftyp(?:hei[cxms]|hev[cx]|mif1|msf1|avi[fs])",
    re.DOTALL,
)
"""Of JPEG, PNG, GIF, BMP, TIFF, WebP, HEIC and AVIF."""
_DRIVE = re.compile("[A-Za-z]:/")
"""Of Windows."""
_NUMBERED_STEM = re.compile(r"(?:COCO_\w+_)?([0-9]{1,12})")


def image_id(relative: PurePosixPath | str, rule: IdRule = "number") -> str:
    """Return the id of the image at a POSIX path relative to the image folder.

    By the rule `number`, a stem of 1 to 12 digits, with or without COCO's prefix, is padded to 12
    digits, so that the 2014 and the 2017 name of an image give the same id. The id of any other
    path is the path without suffix, as NFC. Raises InputError for a path that is absolute, leaves
    the folder, or cannot be a key.
    """
    path = PurePosixPath(relative)
    _check_path(path)
    numbered = _NUMBERED_STEM.fullmatch(path.stem)
    if numbered and rule == "number":
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


def named_id(name: str, rule: IdRule = "number") -> str:
    """Return the id of an image that is called by its file, or by its id, which may have dots."""
    has_suffix = PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES
    return image_id(name if has_suffix else f"{name}.jpg", rule)


def names_file(name: str) -> bool:
    """Return True for a name that can only be a file: one with a suffix, a folder or COCO's prefix.

    A bare number or word may be an id of annotations too.
    """
    path = PurePosixPath(name)
    if path.suffix.lower() in IMAGE_SUFFIXES or "/" in name:
        return True
    return _NUMBERED_STEM.fullmatch(name) is not None and not name.isdecimal()


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


def find_images(folder: Path, rule: IdRule = "number") -> dict[str, Path]:
    """Return all images below `folder` by id, sorted by id.

    Raises InputError if files share an id, naming them, or if there is no image.
    """
    paths_of: dict[str, list[Path]] = {}
    for relative in list_images(folder):
        paths_of.setdefault(image_id(relative.as_posix(), rule), []).append(relative)
    shared = [paths for paths in paths_of.values() if len(paths) > 1]
    if shared:
        groups = [" and ".join(repr(str(path)) for path in paths) for paths in shared]
        raise InputError(
            f"images of {str(folder)!r} share an id: {sample_ids(groups, _NAMED_TOGETHER)}; remove "
            "all but one, rename them, for example to cats-001.jpg, or set data.ids=path: a number "
            "is the id alone"
        )
    return {identity: folder / paths[0] for identity, paths in sorted(paths_of.items())}


def resolve_files(
    files: Mapping[str, str], folder: Path, rule: IdRule = "number"
) -> dict[str, Path]:
    """Find images in `folder` by file name; files: file name by image id.

    Tries the named path, then its last part alone, then any file in `folder` with the same id (a
    2014 name among 2017 names). Returns paths by image id, without images that have no file. The
    names are checked already: an absolute one, or one with `..`, has no image id.
    """
    names = Counter(PurePosixPath(file).name for file in files.values())
    scan = cache(find_images)  # once, and only if a name is not found
    by_id = {}
    for identity, file in files.items():
        base = PurePosixPath(file).name
        # a last part that two images share would give both the same file
        candidates = (file, base) if names[base] == 1 else (file,)
        paths = (folder / name for name in candidates)
        # unlike Path.is_file, False for a name too long
        path = next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113
        path = path or scan(folder, rule).get(identity)
        if path:
            by_id[identity] = path
    return by_id


def list_images(folder: Path) -> list[Path]:
    """Return the paths of all images below `folder`, relative to it and sorted within each folder.

    Follows symbolic links and skips hidden files. Lists links that lead nowhere, files in other
    formats and folders that cannot be read too, so that reading reports each. Raises InputError if
    there is no image.
    """
    paths = [Path(relative) for relative in _relative_files(folder, PurePosixPath(), ())]
    if not paths:
        raise InputError(
            f"no images in {str(folder)!r} (searched for {' '.join(sorted(_READ_SUFFIXES))}); "
            "check the folder"
        )
    return paths


def _relative_files(
    folder: Path, relative: PurePosixPath, above: tuple[tuple[int, int], ...]
) -> Iterator[PurePosixPath]:
    """Yield the images below a folder; above: device and inode of the folders around it."""
    try:
        status = (folder / relative).stat()
        with os.scandir(folder / relative) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        if above:  # every disk has a lost+found, which root alone may read
            yield relative
            return
        raise InputError(
            f"cannot read the folder {str(folder)!r} ({error.strerror}); check the folder"
            f"{did_you_mean(folder)}"
        ) from error
    here = (status.st_dev, status.st_ino)
    if here in above:
        logger.warning("skipped a link to a folder that contains it: %r", str(folder / relative))
        return
    for entry in entries:
        inside = relative / entry.name
        if entry.name.startswith("."):
            continue
        # os.DirEntry needs no system call, but raises OSError for a link to itself
        path = Path(entry) if entry.is_symlink() else entry
        if path.is_dir():
            yield from _relative_files(folder, inside, (*above, here))
            continue
        leads_nowhere = isinstance(path, Path) and not path.exists()
        if is_image_name(Path(entry)) and (leads_nowhere or path.is_file()):
            yield inside


def is_image_name(path: Path) -> bool:
    """Return True for the suffix of an image, and for a file without suffix that begins as one."""
    if "." in path.name or not path.is_file():
        return path.suffix.lower() in IMAGE_SUFFIXES
    try:
        with path.open("rb") as file:
            return _FIRST_BYTES.match(file.read(12)) is not None
    except OSError:
        return False


def _check_path(path: PurePosixPath) -> None:
    name = str(path)
    if not path.name:
        raise InputError(f"no file name in the image path {name!r}; name a file")
    if path.is_absolute() or _DRIVE.match(name):
        raise InputError(f"image path is absolute: {name!r}; give it relative to the image folder")
    if ".." in path.parts:
        raise InputError(f"image path leaves the image folder: {name!r}; give it without '..'")
    if "\0" in name:
        raise InputError(f"image path contains a NUL character: {name!r}; rename the file")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"image path is not UTF-8: {name!r}; rename the file") from error
