"""Annotated images: the rows of a file that each may be one of, and images packed as bytes."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from sys import intern
from typing import NamedTuple, overload

from a2cap.data.annotations.caption import AnnotatedCaption, CheckedCaption
from a2cap.data.annotations.packed_rows import PackedRows
from a2cap.data.identities import Key


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """One image with at least one caption.

    file: POSIX path relative to the image folder. split: 'train', 'val' or 'test'. own_id: id that
    the annotations give the image beside its file, None if they give none. order: place of the
    first caption in a file that lists captions apart from images.
    """

    image_id: str
    file: str
    split: str
    captions: tuple[AnnotatedCaption, ...]
    own_id: Key | None = None
    order: int = field(default=0, compare=False)


class ImageRow(NamedTuple):
    """What one record has of an image; split: its usual name, the reason if it is unknown."""

    image_id: str
    file: str
    position: str
    split: str | None
    own_id: Key | None
    order: int
    captions: list[CheckedCaption]


class PackedImages(Sequence[AnnotatedImage]):
    """Images that become objects when they are asked for.

    splits: of the images in order, None for those that are left out.
    """

    def __init__(self) -> None:
        self._rows, self._numbers = PackedRows(), array("I")
        self.splits: list[str | None] = []

    def append(self, row: ImageRow, split: str | None) -> None:
        """Add an image as the row that has all of its captions; split: None to leave it out."""
        self._numbers.append(len(self._rows))
        self._rows.append(tuple(row))
        self.splits.append(split and intern(split))

    def rows(self) -> Iterator[ImageRow]:
        """Yield the row of each image."""
        return (ImageRow(*self._rows[number]) for number in self._numbers)

    def assign(self, splits: Sequence[str | None]) -> None:
        """Give images their splits, but to those that are left out."""
        pairs = zip(self.splits, splits, strict=True)
        self.splits = [own if own is None else split for own, split in pairs]

    def kept(self) -> "PackedImages":
        """Return the images that are not left out."""
        images, is_kept = PackedImages(), [split is not None for split in self.splits]
        images._rows = self._rows
        images._numbers = array("I", compress(self._numbers, is_kept))
        images.splits = [*compress(self.splits, is_kept)]
        return images

    def __len__(self) -> int:
        return len(self.splits)

    @overload
    def __getitem__(self, index: int) -> AnnotatedImage: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[AnnotatedImage, ...]: ...

    def __getitem__(self, index: int | slice) -> AnnotatedImage | tuple[AnnotatedImage, ...]:
        """Return an image, or several."""
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        row = ImageRow(*self._rows[self._numbers[index]])
        captions = tuple(AnnotatedCaption.of(*caption) for caption in row.captions)
        split = self.splits[index] or ""
        return AnnotatedImage(row.image_id, row.file, split, captions, row.own_id, row.order)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]
