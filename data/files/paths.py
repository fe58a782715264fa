"""Checks of the files and folders that configuration fields name."""

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from a2cap.data.errors import ConfigError, InputError

_MOST_NAMES = 10_000
"""Names of a folder that are compared: a folder of COCO has 120,000, which would take seconds."""


def require_file(path: Path | None, field: str) -> Path:
    """Return the file of `field`; ConfigError if it is not set, InputError if it is not a file."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the file with --set {field}=FILE")
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "not found"
        raise InputError(
            f"file of {field} {problem}: {str(path)!r}; check the path{did_you_mean(path)}"
        )
    return path


def require_folder(path: Path | None, field: str) -> Path:
    """Return the folder of `field`; ConfigError if it is not set or is not a folder."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the folder with --set {field}=DIR")
    if not path.is_dir():
        raise ConfigError(
            f"{field} is not a folder: {str(path)!r}; check the path{did_you_mean(path)}"
        )
    return path


def did_you_mean(path: Path) -> str:
    """Return "; did you mean 'PATH'?" for a missing path or folder with a near one, else ""."""
    if path.exists() or (near := _near(path)) == path:  # the nearest name of a broken link
        return ""
    if near is None:
        return "" if path.parent == path else did_you_mean(path.parent)
    return f"; did you mean {str(near)!r}?"


def _near(path: Path) -> Path | None:
    """Return the existing path with the most similar name, None if none is similar."""
    folder = path.parent if path.parent.is_dir() else _near(path.parent)
    if folder is None or not folder.is_dir() or path.stem.isdecimal():  # a number is an id
        return None
    # stems: equal suffixes would make all names of a folder of images similar
    names: dict[str, list[str]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name.endswith((".lock", ".partial")):  # of an unfinished file of that name
                continue
            names.setdefault(Path(entry.name).stem.casefold(), []).append(entry.name)
    stems = get_close_matches(path.stem.casefold(), names, n=1)
    same = get_close_matches(path.name, names[stems[0]], n=1, cutoff=0) if stems else []
    return folder / same[0] if same else None


def size_of(folder: Path) -> int:
    """Sum the bytes of all files below a folder, which other processes may change."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += 0 if file.is_dir() else file.lstat().st_size
    return total
