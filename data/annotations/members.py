"""Rows of annotations in as little memory as their file: as bytes, in blocks that are compressed.

As Python objects, a caption of 60 characters takes ten times its record in the file.
"""

import marshal
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2cap.data.files.json_file import JsonObject

_ROWS = 32
"""Rows that are compressed together; of rows in any order, each is read with those of its block."""
_PARTS = 8
"""Parts of the rows, of which one is in memory when they are grouped."""
_MOST_KEYS = 100
_TELLING_KEYS = ("images", "annotations", "data", "info", "dataset")
_NO_RANK = np.uint32(2**32 - 1)


class PackedRows:
    """Rows in the order of their file, each of values that JSON has."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._last: list[bytes] = []
        self._open = -1, self._last  # a block and its rows

    def __len__(self) -> int:
        return len(self._blocks) * _ROWS + len(self._last)

    def __getitem__(self, number: int) -> Any:
        """Return a row; quick for rows that follow each other."""
        return marshal.loads(self._packed(number))

    def __iter__(self) -> Iterator[Any]:
        return self.since(0)

    def since(self, number: int) -> Iterator[Any]:
        """Yield the rows from this number on."""
        first, skipped = divmod(number, _ROWS)
        blocks = (self._block(block) for block in range(first, len(self._blocks) + 1))
        return map(marshal.loads, islice(chain.from_iterable(blocks), skipped, None))

    def append(self, row: Any) -> None:
        """Add a row."""
        # by the second version, which interns nothing when it is read
        self._last.append(marshal.dumps(row, 2))
        if len(self._last) == _ROWS:
            packer = zlib.compressobj(1, wbits=13, memLevel=6)  # of 64 KiB, not 256
            self._blocks.append(packer.compress(marshal.dumps(self._last)) + packer.flush())
            self._last = []

    def groups(self, keys: "array[int]", numbers: Sequence[int]) -> Iterator[list[Any]]:
        """Yield the rows `numbers` that have the same key, in the order of the first of each.

        keys: 64-bit integers of those rows.
        """
        ranks = _ranks(keys)
        del keys  # a fifth of a short row, if nothing else has them
        size = int(ranks.max(initial=0)) // _PARTS + 1
        for begin in range(0, size * _PARTS, size):
            places = np.flatnonzero((begin <= ranks) & (ranks < begin + size))
            # in their order, so that each block is decompressed once a part
            rows = [self._packed(numbers[place]) for place in places.tolist()]
            order = np.argsort(ranks[places], kind="stable")
            ends = np.flatnonzero(np.diff(ranks[places[order]], append=_NO_RANK)) + 1
            for first, end in pairwise((0, *ends.tolist())):
                yield [marshal.loads(rows[n]) for n in order[first:end].tolist()]

    def _packed(self, number: int) -> bytes:
        block, place = divmod(number, _ROWS)
        if block != self._open[0]:
            self._open = block, self._block(block)
        return self._open[1][place]

    def _block(self, block: int) -> list[bytes]:
        if block == len(self._blocks):
            return self._last
        rows: list[bytes] = marshal.loads(zlib.decompress(self._blocks[block]))
        return rows


class Members:
    """Members of a JSON object in the order of its file, packed: items of lists, and other values.

    firsts: the values of the first keys and of those that tell a form; of a list, its first item.
    """

    def __init__(self, json_object: JsonObject) -> None:
        """Read the members; raise InputError for a key that is repeated, and for invalid JSON."""
        self.rows, self.firsts = PackedRows(), dict[str, Any]()
        self._starts, keys = dict[str, int](), array("q")
        for key, place, value in json_object.members():
            if not place:
                keys.append(hash(key))
                # an object of more keys is one of images
                if len(self._starts) < _MOST_KEYS or key in _TELLING_KEYS:
                    self._starts[key] = len(self.rows)
                    self.firsts[key] = value if place is None else [value]
            self.rows.append((key, place, value))
        if repeated := repeated_numbers(keys):
            names = Counter(
                key for key, place, _ in self.rows if not place and hash(key) in repeated
            )
            raise json_object.repeated_key(names.most_common(1)[0][0])

    def listed(self, key: str) -> Iterator[tuple[int, str, Any]]:
        """Yield the items of the list under a key with their rows and positions."""
        start = self._starts.get(key, len(self.rows))
        for row, (name, place, item) in enumerate(self.rows.since(start), start):
            if name != key or place is None:
                break
            yield row, f"{key}[{place}]", item


def repeated_numbers(numbers: "array[int]") -> set[int]:
    """Return the 64-bit integers that are there more than once."""
    ordered = np.sort(numbers)
    return {*ordered[1:][ordered[1:] == ordered[:-1]].tolist()}


def _ranks(keys: "array[int]") -> NDArray[np.uint32]:
    """Return for each key its place among the different keys, in the order of their first places.

    Sorted and not by a dictionary, whose keys alone take as much memory as the captions.
    """
    values = np.asarray(keys)
    order = np.argsort(values, kind="stable").astype(np.uint32)
    ordered = values[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    del ordered
    first_places = order[is_first]
    ranks_of_keys = np.empty_like(first_places)
    ranks_of_keys[np.argsort(first_places)] = np.arange(len(first_places), dtype=np.uint32)
    ranks = np.empty_like(order)
    ranks[order] = ranks_of_keys[np.cumsum(is_first, dtype=np.uint32) - 1]
    return ranks
