"""Sources of images, which are listed once and read in order.

A source consists of containers: folders, lists, tars or Parquet files, each read in one pass.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from a2cap.data.errors import A2Error, InputError, TruncatedError


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One image of a source.

    container: name of the folder, list, tar or Parquet file; member: the image's name there, in
    Parquet its row.
    """

    image_id: str
    container: str
    member: str


SourceImage = tuple[SourceItem, bytes | A2Error]
"""An image's file as bytes; InputError if it is bad, UnreadableError if the system failed."""


class ImageContainer(Protocol):
    """A folder, list, tar or Parquet file with images."""

    @property
    def name(self) -> str:
        """Path or URL."""

    def listing(self) -> Iterator[SourceItem]:
        """Yield the images, always in the same order, without reading them.

        Raises InputError if the container cannot be listed.
        """

    def read(self, items: Sequence[SourceItem]) -> Iterator[SourceImage]:
        """Yield each image, or the error for which it cannot be read, in the container's order."""


class ImageSource:
    """The images of one or more containers."""

    def __init__(self, text: str, containers: Iterable[ImageContainer]) -> None:
        self.text = text
        self._by_name = {container.name: container for container in containers}

    @property
    def containers(self) -> Collection[ImageContainer]:
        """The folders, lists, tars or Parquet files, in order."""
        return self._by_name.values()

    def items(self) -> Iterator[SourceItem]:
        """List the images in an order that depends on the content alone.

        Raises InputError for images that share an id, or if there is no image, and at the end
        TruncatedError if a tar ends early: a plan without its other images would lose them.
        """
        seen: dict[str, SourceItem] = {}
        truncated: list[TruncatedError] = []
        for container in self._by_name.values():
            try:
                for item in container.listing():
                    first = seen.setdefault(item.image_id, item)
                    if first is not item:
                        raise InputError(
                            f"two images have the id {item.image_id!r}: {_where(first)} and "
                            f"{_where(item)}; remove or rename one"
                        )
                    yield item
            except TruncatedError as error:
                truncated.append(error)
        if truncated:
            more = f" ({len(truncated) - 1} more tars do too)" if truncated[1:] else ""
            raise TruncatedError(f"{truncated[0]}{more}") from truncated[0]
        if not seen:
            raise InputError(f"no images in {self.text!r}; check the path")

    def read(self, items: Iterable[SourceItem]) -> Iterator[SourceImage]:
        """Yield each image, or the error for which it cannot be read.

        Items of one container should be consecutive and in the order of `items()`: each run of
        them is one pass over it.
        """
        for name, run in groupby(items, key=lambda item: item.container):
            container = self._by_name.get(name)
            if container is None:
                raise InputError(f"{name!r} is not in {self.text!r}; make the plan again")
            yield from container.read(list(run))


def _where(item: SourceItem) -> str:
    return f"{item.member!r} in {item.container!r}"
