"""Writes that survive a power cut: temporary name, fsync, rename, fsync of the folder.

Temporary names do not differ between processes, so that a rerun takes up, and none keeps, what a
killed run left. Two processes never write at once: they would need the same lock.
"""

import os
import shutil
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replaces `path` with `content`, so that a crash leaves the old file or the new, whole."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename_durably(temporary, path)


def rename_durably(source: Path, target: Path) -> None:
    """Renames within one folder and waits until the folder's entry is on disk."""
    source.rename(target)
    fsync(target.parent)


def discard(folder: Path) -> None:
    """Removes a folder, so that a crash leaves it whole or without its name."""
    removed = folder.with_name(f"{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    if folder.exists():
        rename_durably(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)


def fsync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
