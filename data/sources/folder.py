"""Folders of images behind URLs, and text files that list images."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import decode_text
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id
from a2cap.data.sources.location import as_url, file_system, is_url, read_file, require_permitted
from a2cap.data.sources.source import SourceImage, SourceItem

_LONGEST_LINE = 4096


@dataclass(frozen=True)
class Folder:
    """The images below a folder behind a URL."""

    name: str

    def listing(self) -> Iterator[SourceItem]:
        """Yield the images sorted by path."""
        system, top = file_system(self.name)
        for path in sorted(system.find(top)):
            member = PurePosixPath(path).relative_to(top)
            hidden = any(part.startswith(".") for part in member.parts)
            if member.suffix.lower() in IMAGE_SUFFIXES and not hidden:
                name = member.as_posix()
                yield SourceItem(image_id(name), self.name, name)

    def read(self, items: Sequence[SourceItem]) -> Iterator[SourceImage]:
        """Read each file."""
        for item in items:
            yield item, read_file(f"{self.name.rstrip('/')}/{item.member}")


@dataclass(frozen=True)
class ImageList:
    """A text file with the path or URL of an image per line; paths are relative to its folder.

    A list may be anyone's: its lines name files below its folder, or plain URLs.
    """

    name: str

    def listing(self) -> Iterator[SourceItem]:
        """Yield the images in the order of the list.

        A line that names no image has an id of its own, so that it is reported when it is read.
        """
        content = read_file(self.name)
        if not isinstance(content, bytes):
            raise content
        lines = decode_text(content, where=repr(self.name)).split("\n")
        for number, line in enumerate(lines, start=1):
            if member := line.strip()[: _LONGEST_LINE + 1]:
                try:
                    identity, _ = place_of(member, self.name)
                except InputError:
                    identity = f"{PurePosixPath(self.name).stem}/line-{number}"
                yield SourceItem(identity, self.name, member)

    def local_files(self) -> dict[str, Path]:
        """Map the ids of the images on this machine to their files."""
        files = {}
        for item in self.listing():
            with suppress(InputError):
                _, place = place_of(item.member, self.name)
                if not is_url(place):
                    files[item.image_id] = Path(place)
        return files

    def read(self, items: Sequence[SourceItem]) -> Iterator[SourceImage]:
        """Read each file."""
        for item in items:
            try:
                _, place = place_of(item.member, self.name)
            except InputError as error:
                yield item, error
            else:
                yield item, read_file(place)


def place_of(member: str, listed_in: str) -> tuple[str, str]:
    """Return the id and the path or URL of an image that a list or a table names.

    Raises InputError unless it is below the folder of that file, or a permitted URL.
    """
    if len(member) > _LONGEST_LINE:
        raise InputError(f"line of {listed_in!r} is too long: {member[:40]!r}…; shorten it")
    member = as_url(member)
    if is_url(member) or "::" in member:
        require_permitted(member)
        return image_id(member.partition("://")[2]), member
    member = below(member, listed_in)
    return image_id(member), f"{listed_in.rpartition('/')[0] or '.'}/{member}"


def below(member: str, listed_in: str) -> str:
    """Return a path relative to the folder of a file that names it; InputError if it is outside."""
    folder = listed_in.rpartition("/")[0] or "."
    if member.startswith("/"):
        top = os.path.abspath(folder)  # noqa: PTH100  (keeps links)
        if is_url(listed_in) or not PurePosixPath(member).is_relative_to(top):
            raise InputError(
                f"{member!r} is outside the folder of {listed_in!r}, which names it; "
                "name the folder of the images, or move that file to a folder above them"
            )
        return str(PurePosixPath(member).relative_to(top))
    return member
