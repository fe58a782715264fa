"""WebDataset tars: uncompressed, with `KEY.jpg` and texts or JSON of the same key."""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, cast

from a2cap.data.errors import A2Error, InputError, TruncatedError
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id
from a2cap.data.sources.location import LARGEST_FILE, access_error, open_file, too_large
from a2cap.data.sources.source import SourceImage, SourceItem

_LARGEST_HEADER = 1 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Tar:
    """The members of a tar file."""

    name: str

    def listing(self) -> Iterator[SourceItem]:
        """Yield the images in the order of the file; TruncatedError at the end if it ends early.

        A member whose name is no image id gets one, so that it is reported when it is read.
        """
        for number, (member, _) in enumerate(self.members(lambda _: False)):
            if is_image(member):
                try:
                    identity = image_id(member)
                except InputError:
                    identity = f"{PurePosixPath(self.name).stem}/member-{number}"
                yield SourceItem(identity, self.name, member)

    def read(self, items: Sequence[SourceItem]) -> Iterator[SourceImage]:
        """Read the images in one pass, which ends at the last of them."""
        left = {item.member: item for item in items}
        problem: A2Error | None = None
        try:
            for member, content in self.members(left.__contains__):
                if member in left:
                    yield left.pop(member), _named(member, content)
                if not left:
                    return
        except A2Error as error:
            problem = error
        for item in left.values():
            missing = f"no whole image {item.member!r} in {self.name!r}; copy the tar again"
            yield item, problem or InputError(missing)

    def members(self, wants: Callable[[str], bool]) -> Iterator[tuple[str, bytes | InputError]]:
        """Yield the name and, if `wants` returns True for it, the content of each member.

        Raises TruncatedError after the last whole member if the tar ends early, is damaged or is
        not one; UnreadableError if reading fails.
        """
        count = 0
        with open_file(self.name) as file:
            try:
                for member in _headers(file):
                    if member.isreg():
                        content = self._content(file, member) if wants(member.name) else b""
                        yield member.name, content
                        count += 1
            except OSError as error:
                raise access_error(self.name, error) from error
            except Exception as error:  # tarfile raises many types for damaged headers
                raise TruncatedError(
                    f"tar {self.name!r} ends early or is damaged, after {count:,} whole members; "
                    "copy it again, or leave it out"
                ) from error

    def _content(self, file: BinaryIO, member: tarfile.TarInfo) -> bytes | InputError:
        if member.size > LARGEST_FILE:
            return too_large(f"{self.name}/{member.name}")
        file.seek(member.offset_data)
        return file.read(member.size)


def _headers(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the header of each whole member; raise ReadError if zeros to the end do not follow."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    with tarfile.open(fileobj=cast(BinaryIO, _HeaderFile(file)), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # a list of all, unneeded
            if not 0 <= member.size <= end - member.offset_data:
                raise tarfile.ReadError("ends within a member")
            yield member
        # tarfile takes a damaged header, and a cut between members, for the end
        file.seek(tar.offset)
        if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("ends without its mark")
        file.seek(tar.offset)
        while block := file.read(_BLOCK):
            if block.strip(b"\0"):
                raise tarfile.ReadError("has something after its end")


class _HeaderFile:
    """A file of which a damaged header cannot make tarfile read more than a header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Return `size` bytes; raise ReadError for more than any header has."""
        if not 0 <= size <= _LARGEST_HEADER:
            raise tarfile.ReadError("has an impossible header")
        return self._file.read(size)


def _named(member: str, content: bytes | InputError) -> bytes | InputError:
    """Return the content of an image, or the error of its name."""
    try:
        image_id(member)
    except InputError as error:
        return error
    return content


def is_image(member: str) -> bool:
    """Return True if the name of a member has the suffix of an image."""
    path = PurePosixPath(member)
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
