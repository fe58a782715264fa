"""Atomic, durable writes: temporary name, fsync, rename, fsync of the folder.

A crash or power cut leaves the old file or the new one, whole.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from a2cap.data.files.system import fsync

_LONGEST_NAME = 255
"""Bytes of a file's name."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` unless the block raises."""
    # The same temporary name in every process: a rerun overwrites what a killed run left. Callers
    # hold a lock; without one, write with `a2cap.data.files.cache`.
    name = f".{path.name}.partial"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{sha256(os.fsencode(path.name)).hexdigest()}.partial"
    temporary = path.with_name(name)
    try:
        yield temporary
        fsync(temporary)
        rename_durably(temporary, path)
    except BaseException:  # such as a full disk, of which it would take a part
        temporary.unlink(missing_ok=True)
        raise


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
