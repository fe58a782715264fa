"""Journals of captions: JSON lines that one process appends, from which a stopped run resumes."""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from a2cap.data.errors import InputError, LockedError
from a2cap.data.files.system import locked, open_regular

logger = logging.getLogger(__name__)

_FIRST_BYTES = b'{"image": '
"""Of each line."""
_TEXTS = ("image", "model")
"""Texts that each line has."""
_LARGEST_INDEX = 1 << 30
"""Bytes of an index: a sparse file of a terabyte is none."""


class Journal:
    """Lines of captions, which change with the first one that is appended.

    folder: of which it is the hidden index: that is locked, damaged lines are skipped, and the
    file is neither a link nor without bounds, since the folder may be anyone's. Otherwise the file
    itself is locked, and other lines are an error. Raises LockedError while another process writes.
    """

    def __init__(self, path: Path, *, folder: Path | None = None) -> None:
        self.path, self._is_index = path, folder is not None
        self._file: BinaryIO | None = None
        with ExitStack() as opened:
            self._is_new = _lock(path, opened) if folder is None else _lock_folder(folder, opened)
            opened.callback(self._remove_if_new)  # before it is unlocked
            self.lines = self.read()
            self._opened = opened.pop_all()

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines of the file; a killed run may have left half a line."""
        content = self._content()
        end = content.rfind(b"\n") + 1
        half = content[end:]
        if not (half.startswith(_FIRST_BYTES) or _FIRST_BYTES.startswith(half) or self._is_index):
            raise self._other_file(half)
        self._kept = end
        parsed = [(line, _parsed(line)) for line in content[:end].splitlines()]
        damaged = [line for line, value in parsed if value is None]
        if damaged and not self._is_index:
            raise self._other_file(damaged[0])
        if damaged:
            logger.warning(
                "%s has %d damaged lines; the texts that they name count as of other origin",
                self.path,
                len(damaged),
            )
        return [value for _, value in parsed if value is not None]

    def _content(self) -> bytes:
        if not self._is_index:
            return self.path.read_bytes()
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if self.path.is_symlink() or size > _LARGEST_INDEX:
                    raise InputError(
                        f"not an index of captions: {str(self.path)!r} is a link, or has more than "
                        f"{_LARGEST_INDEX >> 20:,} MiB; remove it"
                    )
                return file.read()
        except FileNotFoundError:
            return b""

    def drop(self) -> None:
        """Drop all lines when the next one is appended."""
        self.lines, self._kept = [], 0

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line."""
        if self._file is None:
            self._file = self._opened.enter_context(self.path.open("ab"))
            self._file.truncate(self._kept)
        self._file.write(f"{json.dumps(line)}\n".encode())
        self._file.flush()

    def remove(self) -> None:
        """Remove the file while it is still locked."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and unlock it; a new one without a line leaves nothing."""
        self._opened.close()

    def _remove_if_new(self) -> None:
        if self._is_new and self._file is None:
            self.remove()

    def _other_file(self, line: bytes) -> InputError:
        return other_file(self.path, f"has the line {line[:40].decode(errors='replace')!r}")


def other_file(path: Path, reason: str) -> InputError:
    """Return the error of a file that a2 has not written."""
    return InputError(f"not a file of captions: {str(path)!r} {reason}; name another --output")


def _lock(path: Path, opened: ExitStack) -> bool:
    """Lock a file as long as the stack is open; create a missing one, and return True for it."""
    is_new = False
    while True:
        try:
            opened.enter_context(locked(path, exclusive=True))
        except BlockingIOError as error:
            raise _busy(f"this file: {str(path)!r}") from error
        except FileNotFoundError:  # also one that a process which has just finished removed
            path.touch()
            is_new = True
            continue
        except OSError:  # a file system without locks
            path.touch()
        return is_new


def _lock_folder(folder: Path, opened: ExitStack) -> bool:
    try:
        opened.enter_context(locked(folder, exclusive=True))
    except BlockingIOError as error:
        raise _busy(f"the folder {str(folder)!r}") from error
    except OSError:  # a file system without locks, or no folder: reading the image reports it
        pass
    return False


def _busy(place: str) -> LockedError:
    return LockedError(
        f"another process writes captions into {place}; wait for it, or name another --output"
    )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(value, dict) and all(isinstance(value.get(k), str) for k in _TEXTS)
    return value if is_line else None
