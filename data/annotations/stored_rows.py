"""Rows of annotations in a temporary database, of which a few megabytes are in memory.

As Python objects, a caption of 60 characters takes ten times its record in the file.
"""

import marshal
import sqlite3
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

from a2cap.data.errors import InputError

Item = TypeVar("Item")


class LazySequence(Sequence[Item], Generic[Item]):
    """Items that are made when they are asked for; a slice is a tuple of them."""

    @abstractmethod
    def item(self, position: int) -> Item:
        """Make an item; position: from 0."""

    def __getitem__(self, index: Any) -> Any:
        """Return an item, or several as a tuple."""
        positions = range(len(self))[index]
        return (
            self.item(positions) if isinstance(positions, int) else tuple(map(self.item, positions))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type, tuple[list[Item]]]:
        """Pickle as a tuple of all items: what they are made of is in a file of this process."""
        return tuple, ([*self],)


class StoredRows(LazySequence[Item]):
    """Items in their order, each stored as a row of values that JSON has, by a key."""

    def __init__(self, make: Callable[..., Item]) -> None:
        """Begin without rows; make: returns the item of the values of a row."""
        self._make, self._count, self._is_indexed = make, 0, False
        # in memory up to the size of SQLite's cache, then in a file without a name
        self._base = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._base.close)  # Python 3.13 warns of one that is left open
        self._run("pragma journal_mode = off")
        self._run("create table rows (number integer primary key, key integer, content blob)")
        self._run("begin")

    def append(self, row: Sequence[Any], key: str = "") -> None:
        """Add a row; raise InputError if the disk is full. Keys differ but once in 10^19 cases."""
        content = marshal.dumps(tuple(row), 2)  # of a named tuple too
        self._run("insert into rows values (?, ?, ?)", self._count, hash(key), content)
        self._count += 1

    def groups(self) -> Iterator[list[Item]]:
        """Yield the items that have the same key, in the order of the first of each."""
        rows = self._run(
            "select min(number) over (partition by key) as first, content from rows "
            "order by first, number"
        )
        for _, group in groupby(rows, key=itemgetter(0)):
            yield [self._item(content) for _, content in group]

    def of_key(self, key: str) -> Iterator[tuple[int, Item]]:
        """Yield the places of a key, and its items."""
        if not self._is_indexed:
            self._run("create index keys on rows (key)")
            self._is_indexed = True
        rows = self._run("select number, content from rows where key = ? order by 1", hash(key))
        return ((number, self._item(content)) for number, content in rows)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        rows = self._run("select content from rows order by number")
        return (self._item(content) for (content,) in rows)

    def item(self, position: int) -> Item:
        """Read a row."""
        [[content]] = self._run("select content from rows where number = ?", position)
        return self._item(content)

    def _item(self, content: bytes) -> Item:
        return self._make(*marshal.loads(content))

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._base.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise InputError(
                f"cannot store annotations in a temporary file ({error}); free disk space, or set "
                "TMPDIR to a folder of another disk"
            ) from error
