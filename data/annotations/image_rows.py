"""Annotated images, stored as rows of which each becomes an object when it is asked for."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, NamedTuple, TypeVar

from a2cap.data.annotations.caption import AnnotatedCaption
from a2cap.data.annotations.stored_rows import LazySequence, StoredRows
from a2cap.data.identities import Key

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """One image with at least one caption.

    file: POSIX path relative to the image folder. split: 'train', 'val' or 'test'. own_id: id that
    the annotations give the image beside its file, None if they give none.
    """

    image_id: str
    file: str
    split: str
    captions: tuple[AnnotatedCaption, ...]
    own_id: Key | None = None


class ImageRow(NamedTuple):
    """What one record, or all of its records, have of an image.

    Of a record, only the type of `file` is checked: "" for captions that are listed without images.
    split: as the record names it, None if it does not; later its usual name, or the reason if it is
    unknown.
    captions: each a text, or a mapping of raw and tokens; later a CheckedCaption.
    own_id: id that the file gives the image beside its name, None if it gives none.
    key: the image as the record names it.
    order: place of its first caption in a file that lists captions apart from images.
    """

    position: str
    file: str
    split: Any
    captions: Sequence[Any]
    own_id: Key | None = None
    key: Key = ""
    order: int = 0
    image_id: str = ""


class StoredImages(LazySequence[AnnotatedImage]):
    """Images of stored rows; splits: of each row, None for an image that is left out."""

    def __init__(self, rows: StoredRows[ImageRow], splits: Sequence[str | None]) -> None:
        self._rows, self._splits = rows, splits
        self._numbers = array("I", (n for n, split in enumerate(splits) if split is not None))

    def of_split(self, name: str) -> "StoredImages":
        """Return the images of a split."""
        return StoredImages(self._rows, [s if s == name else None for s in self._splits])

    def rows(self) -> Iterator[ImageRow]:
        """Yield the row of each image."""
        return compress(self._rows, (split is not None for split in self._splits))

    def row_of(self, image_id: str) -> ImageRow:
        """Return the row of an image; raise KeyError if it is not there."""
        for number, row in self._rows.of_key(image_id):
            if row.image_id == image_id and self._splits[number] is not None:
                return row
        raise KeyError(image_id)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[AnnotatedImage]:
        return map(_image, self.rows(), (split for split in self._splits if split is not None))

    def item(self, position: int) -> AnnotatedImage:
        """Read the row of an image."""
        number = self._numbers[position]
        return _image(self._rows[number], self._splits[number] or "")


class ImageValues(Mapping[str, Value], Generic[Value]):
    """A value of each image by its id, made of its row when it is asked for."""

    def __init__(self, images: StoredImages, value: Callable[[ImageRow], Value]) -> None:
        self._images, self._value = images, value
        self._last: ImageRow | None = None

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[str]:
        for row in self._images.rows():
            self._last = row
            yield row.image_id

    def __getitem__(self, image_id: str) -> Value:
        # items() and values() ask for the image that iteration is at
        row = self._last
        if row is None or row.image_id != image_id:
            row = self._images.row_of(image_id)
        return self._value(row)


def _image(row: ImageRow, split: str) -> AnnotatedImage:
    captions = tuple(AnnotatedCaption.of(*caption) for caption in row.captions)
    return AnnotatedImage(row.image_id, row.file, split, captions, row.own_id)
