"""Atomic, durable writes: temporary name, fsync, rename, fsync of the folder.

A crash or power cut leaves the old file or the new one, whole.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2cap.data.files.system import fsync


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` unless the block raises."""
    # The same temporary name in every process: a rerun overwrites what a killed run left. Callers
    # hold a lock; without one, write with `a2cap.data.files.cache`.
    temporary = path.with_name(f".{path.name}.partial")
    yield temporary
    fsync(temporary)
    rename_durably(temporary, path)


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one folder and wait until the folder's entry is on disk."""
    source.replace(target)  # Windows renames to no name that exists
    fsync(target.parent)


def discard(folder: Path) -> None:
    """Remove a folder; a crash leaves it whole or without its name."""
    removed = folder.with_name(f"{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    if folder.exists():
        rename_durably(folder, removed)
        shutil.rmtree(removed, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
