"""WebDataset tars: uncompressed, with `KEY.jpg` and texts or JSON of the same key."""

import logging
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from a2cap.data.errors import A2Error, InputError
from a2cap.data.image_ids import IMAGE_SUFFIXES, image_id
from a2cap.data.sources.location import access_error, open_file
from a2cap.data.sources.source import EncodedImage, SourceItem

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tar:
    """The whole members of a tar file, which may end early."""

    name: str

    def listing(self) -> Iterator[tuple[SourceItem, int]]:
        """Yield the images in the order of the file."""
        for member, size, _ in self.members(lambda _: False):
            if is_image(member):
                try:
                    yield SourceItem(image_id(member), self.name, member), size
                except InputError as error:
                    logger.warning("skipped an image of %r: %s", self.name, error)

    def read(self, items: Sequence[SourceItem]) -> Iterator[EncodedImage]:
        """Read the images in one pass, which ends at the last of them."""
        wanted = {item.member: item for item in items}
        problem: A2Error | None = None
        try:
            for member, _, content in self.members(wanted.__contains__):
                if member in wanted:
                    yield wanted.pop(member), content
                if not wanted:
                    return
        except A2Error as error:
            problem = error
        for item in wanted.values():
            missing = f"no whole image {item.member!r} in {self.name!r}; copy the tar again"
            yield item, problem or InputError(missing)

    def members(self, wants: Callable[[str], bool]) -> Iterator[tuple[str, int, bytes]]:
        """Yield name, size and, if `wants` returns True for the name, content of each whole member.

        Logs a warning if the tar ends early or is not one; raises UnreadableError if reading fails.
        """
        count, is_whole = 0, False
        with open_file(self.name) as file:
            try:
                end = file.seek(0, os.SEEK_END)
                file.seek(0)
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    while (member := tar.next()) is not None:
                        tar.members = []  # type: ignore[attr-defined]  # a list of all, unneeded
                        if not member.isreg() or member.offset_data + member.size > end:
                            continue
                        count += 1
                        content = b""
                        if wants(member.name):
                            file.seek(member.offset_data)
                            content = file.read(member.size)
                        yield member.name, member.size, content
                    # tarfile takes a damaged header, and a cut between members, for the end
                    file.seek(tar.offset)
                    is_whole = file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
            except tarfile.TarError:
                pass
            except Exception as error:
                raise access_error(self.name, error) from error
        if not is_whole:
            logger.warning(
                "tar %r ends early: its %d whole members are used; copy it again", self.name, count
            )


def is_image(member: str) -> bool:
    """Return True if the name of a member has the suffix of an image."""
    path = PurePosixPath(member)
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
