"""Writes that survive a power cut: temporary name, fsync, rename, fsync of the folder."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replaces `path` with `content`, so that a crash leaves the old file or the new, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename_durably(temporary, path)


def rename_durably(source: Path, target: Path) -> None:
    """Renames within one folder and waits until the folder's entry is on disk."""
    source.rename(target)
    fsync(target.parent)


def fsync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
