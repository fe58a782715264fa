"""Annotated images in as little memory as their file: their records as bytes, grouped by image.

As Python objects, a caption of 60 characters takes ten times its record in the file.
"""

import marshal
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from sys import intern
from typing import NamedTuple, overload

import numpy as np

from a2cap.data.annotations.caption import Caption, CheckedCaption
from a2cap.data.identities import Key

_ROWS = 32
"""Rows that are compressed together; of rows in any order, each is read with those of its block.

Of 64, reading five shuffled captions an image took 1.3 times as long, of 16 short ones more memory.
"""


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
    captions: tuple[Caption, ...]
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


class ImageRows:
    """Rows of a file, in its order: blocks of them compressed, which rows of one kind are well."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._last: list[bytes] = []
        self._hashes = array("q")
        self._open = -1, self._last  # a block and its rows

    def __len__(self) -> int:
        return len(self._blocks) * _ROWS + len(self._last)

    def __getitem__(self, number: int) -> ImageRow:
        block, place = divmod(number, _ROWS)
        if block == len(self._blocks):
            return ImageRow(*marshal.loads(self._last[place]))
        if block != self._open[0]:
            self._open = block, marshal.loads(zlib.decompress(self._blocks[block]))
        return ImageRow(*marshal.loads(self._open[1][place]))

    def append(self, row: ImageRow) -> None:
        """Add a row."""
        # by the second version, which interns nothing when it is read
        self._last.append(marshal.dumps(tuple(row), 2))
        self._hashes.append(hash(row.image_id))
        if len(self._last) == _ROWS:
            self._blocks.append(zlib.compress(marshal.dumps(self._last), 1))
            self._last = []

    def groups(self) -> Iterator[list[tuple[int, ImageRow]]]:
        """Yield the rows of each image with their numbers, in the order of the first rows, once."""
        # sorted and not in a dictionary, whose keys alone take as much memory as the captions
        hashes, self._hashes = np.frombuffer(self._hashes, np.int64), array("q")
        order = np.argsort(hashes, kind="stable").astype(np.uint32)
        is_first = np.ones(len(order) + 1, bool)
        ordered = hashes[order]
        is_first[1:-1] = ordered[1:] != ordered[:-1]
        del hashes, ordered  # the groups are in `order`
        bounds = np.flatnonzero(is_first).astype(np.uint32)
        for group in np.argsort(order[bounds[:-1]]).astype(np.uint32):
            numbers = order[slice(*bounds[group : group + 2])].tolist()
            rows = [(number, self[number]) for number in numbers]
            if len(rows) > 1:  # different ids may have one hash
                rows.sort(key=lambda row: row[1].image_id)
            for _, same in groupby(rows, key=lambda row: row[1].image_id):
                yield list(same)


class PackedImages(Sequence[AnnotatedImage]):
    """Images whose rows become objects when they are asked for.

    splits: of the images in order, None for those that are left out.
    """

    def __init__(self, rows: ImageRows) -> None:
        self._rows, self._numbers, self._ends = rows, array("I"), array("I", [0])
        self.splits: list[str | None] = []

    def append(self, numbers: Sequence[int], split: str | None) -> None:
        """Add the image of these rows; split: None for one that is left out."""
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))
        self.splits.append(split and intern(split))

    def first_rows(self) -> Iterator[ImageRow]:
        """Yield the first row of each image."""
        return (self._rows[self._numbers[first]] for first in self._ends[:-1])

    def assign(self, splits: Sequence[str | None]) -> None:
        """Give images their splits, but to those that are left out."""
        pairs = zip(self.splits, splits, strict=True)
        self.splits = [own if own is None else split for own, split in pairs]

    def kept(self) -> "PackedImages":
        """Return the images that are not left out."""
        images = PackedImages(self._rows)
        for place, split in enumerate(self.splits):
            if split is not None:
                images.append(self._numbers[slice(*self._ends[place : place + 2])], split)
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
        place = range(len(self))[index]
        rows = [self._rows[n] for n in self._numbers[slice(*self._ends[place : place + 2])]]
        captions = tuple(Caption.of(*caption) for row in rows for caption in row.captions)
        first, split = rows[0], self.splits[place] or ""
        return AnnotatedImage(
            first.image_id, first.file, split, captions, first.own_id, first.order
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]
