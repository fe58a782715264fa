"""Captions in text files beside their images, as trainers of image generators read them.

A text that a2 did not write, or that a person has edited, is kept. Which ones a2 wrote is in a
hidden index in each folder, with the captioner and the settings.
"""

import os
import stat
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.pipeline.captioning.named_images import ImageNames
from a2cap.pipeline.captioning.outputs.journal import Journal
from a2cap.pipeline.captioning.outputs.output import (
    CaptionOutput,
    Origin,
    State,
    UnwritableError,
    identity,
)

_OPEN_FOLDERS = 64
"""Folders whose index is open and locked; each takes file descriptors."""
_LONGEST_NAME = 255
"""Bytes of a file's name."""
_LONGEST_SUFFIX = 32


class Sidecars(CaptionOutput):
    """A file NAME.txt beside each image, of the names of `ImageNames`; suffix: in place of .txt."""

    def __init__(
        self, origin: Origin, *, suffix: str = ".txt", force: bool, replace_foreign: bool
    ) -> None:
        _require_suffix(suffix)
        self._suffix, self._origin = suffix, origin
        self._force, self._replaces = force, replace_foreign
        self._names = ImageNames()
        self._folders: OrderedDict[Path, _Folder] = OrderedDict()

    def state(self, image: Path) -> State:
        """Return what is beside an image; raise UnwritableError where that is
        impossible."""
        folder, name = self._folder(image), self._text(image)
        state = folder.state(name)
        if state == "foreign":
            folder.require_no_folder(name)
        if (state == "done" and self._force) or (state == "foreign" and self._replaces):
            state = "missing"
        if state == "missing":
            folder.require_writable(name)
        return state

    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Write the best caption, unless a foreign text has come since `state`."""
        if self.state(image) == "foreign":
            return False
        self._folder(image).write(image, self._text(image), line)
        return True

    def _text(self, image: Path) -> str:
        """Return the name of the text of an image."""
        return f"{self._names.of(image)}{self._suffix}"

    def _folder(self, image: Path) -> "_Folder":
        path = Path(identity(image)).parent
        if path not in self._folders:
            self._folders[path] = _Folder(path, self._suffix, self._origin, force=self._force)
            if len(self._folders) > _OPEN_FOLDERS:
                self._folders.popitem(last=False)[1].index.close()
        self._folders.move_to_end(path)
        return self._folders[path]

    def close(self) -> None:
        """Unlock the folders; each file is whole."""
        while self._folders:
            self._folders.popitem()[1].index.close()


class _Folder:
    """The texts of a folder; force: those of another captioner or other settings are replaced."""

    def __init__(self, path: Path, suffix: str, origin: Origin, *, force: bool) -> None:
        self._path, self._origin = path, origin
        self.index = Journal(path / f".captions{suffix}.jsonl", folder=path)
        self._texts: dict[str, set[str]] = {}  # name -> what a2 wrote, in any run
        latest = {}
        for line in self.index.lines:
            name, caption = line.get("file"), line.get("caption")
            if isinstance(name, str) and isinstance(caption, str):
                self._texts.setdefault(name, set()).add(caption)
                latest[name] = line
        self.index.lines = []
        if not force:
            foreign_lines = (
                line
                for name, line in latest.items()
                if not origin.wrote(line) and self._is_own(name)
            )
            try:
                place = f"folder: {str(path)!r}"
                origin.require_same(place, foreign_lines, remedy="--sidecar-suffix")
            except InputError:
                self.index.close()
                raise

    def state(self, name: str) -> State:
        """Return what the text of this name is."""
        if self._is_own(name):
            return "done"
        return "foreign" if os.path.lexists(self._path / name) else "missing"

    def _is_own(self, name: str) -> bool:
        captions = self._texts.get(name, set())
        longest = max((len(_content(caption)) for caption in captions), default=0)
        try:
            # a link, a FIFO, a device, and a longer text are never a2's
            status = (self._path / name).lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > longest:
                return False
            content = (self._path / name).read_bytes()
        except OSError:
            return False
        return any(content == _content(caption) for caption in captions)

    def require_no_folder(self, name: str) -> None:
        """Raise UnwritableError if a folder has the name of a text."""
        if (self._path / name).is_dir():
            raise UnwritableError(
                f"its sidecar would replace a folder: {name!r}; rename the folder, or use "
                "--sidecar-suffix"
            )

    def require_writable(self, name: str) -> None:
        """Raise UnwritableError if a text of this name cannot be written."""
        size = len(os.fsencode(name))
        if size > _LONGEST_NAME:
            raise UnwritableError(
                f"the name of its sidecar has {size} bytes, at most {_LONGEST_NAME} are possible: "
                f"{name[:40]!r}…; shorten the image's name, or name a file as --output"
            )
        if self._path.is_dir() and not _is_writable(self._path):
            raise UnwritableError(
                f"its sidecar cannot be written: {str(self._path)!r} is read-only; fix its "
                "permissions, or name a file as --output"
            )

    def write(self, image: Path, name: str, line: Mapping[str, Any]) -> None:
        """Write a text of a2."""
        caption = str(line["caption"])
        # first: a text that is not in the index is a person's
        self.index.append(
            {"image": image.name, "file": name, "caption": caption, "model": self._origin.model}
            | ({"settings": self._origin.settings} if self._origin.settings else {})
        )
        self._texts.setdefault(name, set()).add(caption)
        write_durably(self._path / name, _content(caption))


def _is_writable(folder: Path) -> bool:
    is_effective = os.access in os.supports_effective_ids
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=is_effective)


def _content(caption: str) -> bytes:
    return f"{caption}\n".encode(errors="backslashreplace")


def _require_suffix(suffix: str) -> None:
    """Raise InputError for a suffix that no text file has."""
    is_name = suffix[:1] == "." and suffix[1:].strip(". ") and suffix.isprintable()
    if not is_name or "/" in suffix or "\\" in suffix or len(suffix) > _LONGEST_SUFFIX:
        raise InputError(
            f"--sidecar-suffix is not a suffix: {suffix!r}; name one such as .txt or .caption"
        )
    if suffix.lower() in IMAGE_SUFFIXES:
        raise InputError(
            f"--sidecar-suffix is that of images: {suffix!r}; name one such as .txt or .caption"
        )
