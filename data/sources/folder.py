"""Folders of images, and text files that list images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from a2cap.data.files.json_file import decode_text
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id, list_images
from a2cap.data.sources.location import file_system, read_file
from a2cap.data.sources.source import EncodedImage, SourceItem


@dataclass(frozen=True)
class Folder:
    """The images below a folder, here or behind a URL."""

    name: str

    def listing(self) -> Iterator[tuple[SourceItem, int]]:
        """Yield the images sorted by path within each folder."""
        for member, size in self._local() if Path(self.name).is_dir() else self._remote():
            yield SourceItem(image_id(member), self.name, member), size

    def read(self, items: Sequence[SourceItem]) -> Iterator[EncodedImage]:
        """Read each file."""
        for item in items:
            yield item, read_file(f"{self.name.rstrip('/')}/{item.member}")

    def _local(self) -> Iterator[tuple[str, int]]:
        folder = Path(self.name)
        for path in list_images(folder):
            # links that lead nowhere are listed, and reported when they are read
            found = folder / path
            yield path.as_posix(), found.stat().st_size if found.exists() else 0

    def _remote(self) -> Iterator[tuple[str, int]]:
        system, top = file_system(self.name)
        for path, details in sorted(system.find(top, detail=True).items()):
            member = PurePosixPath(path).relative_to(top)
            hidden = any(part.startswith(".") for part in member.parts)
            if member.suffix.lower() in IMAGE_SUFFIXES and not hidden:
                yield member.as_posix(), int(details["size"] or 0)


@dataclass(frozen=True)
class ImageList:
    """A text file with the path or URL of an image per line; paths are relative to its folder."""

    name: str

    def listing(self) -> Iterator[tuple[SourceItem, int]]:
        """Yield the images in the order of the list; their sizes are not looked up."""
        content = read_file(self.name)
        if not isinstance(content, bytes):
            raise content
        for line in decode_text(content, where=repr(self.name)).splitlines():
            if member := line.strip():
                # an absolute path or URL without its root is the id
                inside = PurePosixPath(member.partition("://")[2] or member.lstrip("/"))
                yield SourceItem(image_id(inside), self.name, member), 0

    def read(self, items: Sequence[SourceItem]) -> Iterator[EncodedImage]:
        """Read each file."""
        folder = self.name.rpartition("/")[0]
        for item in items:
            is_whole = "://" in item.member or item.member.startswith("/") or not folder
            yield item, read_file(item.member if is_whole else f"{folder}/{item.member}")
