"""Checks of the files and folders that configuration fields name."""

from contextlib import suppress
from pathlib import Path

from a2cap.data.errors import ConfigError, InputError


def require_file(path: Path | None, field: str) -> Path:
    """Return the file of `field`; ConfigError if it is not set, InputError if it is not a file."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the file with --set {field}=FILE")
    if not path.is_file():
        raise InputError(f"file of {field} not found: {str(path)!r}; check the path")
    return path


def require_folder(path: Path | None, field: str) -> Path:
    """Return the folder of `field`; ConfigError if it is not set or is not a folder."""
    if path is None:
        raise ConfigError(f"{field} is not set; name the folder with --set {field}=DIR")
    if not path.is_dir():
        raise ConfigError(f"{field} is not a folder: {str(path)!r}; check the path")
    return path


def size_of(folder: Path) -> int:
    """Sum the bytes of all files below a folder, which other processes may change."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += 0 if file.is_dir() else file.lstat().st_size
    return total
