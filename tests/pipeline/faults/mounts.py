"""Small and read-only file systems; a test is skipped where it may not mount them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the permission to mount a file system is missing: {error}")


class SmallDisk:
    """A file system of a few kilobytes at a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _mount("-t", "tmpfs", "-o", "size=4k", "tmpfs", str(path))

    def resize(self, size: int) -> None:
        """Change the capacity to `size` bytes."""
        options = f"remount,size={max(size, 4096)}"
        _mount("-t", "tmpfs", "-o", options, "tmpfs", str(self.path))

    def unmount(self) -> None:
        """Remove the file system."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make a folder read-only also for root, who ignores permission bits."""
    _mount("-o", "bind", str(path), str(path))
    try:
        _mount("-o", "remount,bind,ro", str(path), str(path))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
