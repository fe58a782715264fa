"""The tree of an LMDB data file, checked before LMDB walks it.

LMDB trusts its file: a damaged page can lead it outside of its map, which kills the process by
SIGBUS. So whatever it would follow is looked at first: every page of keys, and the place and length
of every value, but none of the values. Layout: `mdb.c` of LMDB 0.9, data version 1; a file of
another version is left to LMDB.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<16x II 8x 8x I 44x IHHQQQQQ Q Q")
_HEADER = struct.Struct("<Q H H H H")
_NODE = struct.Struct("<H H H H")
_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _ELSEWHERE = 1, 2, 1
_NOTHING = 2**64 - 1
_FIRST_PAGE = 2


class _Damage(Exception):
    """The tree leads where it must not."""


@dataclass(frozen=True)
class _Tree:
    """What the newer of the two first pages says of the file; end: of its used part, in bytes."""

    page_size: int
    depth: int
    entries: int
    root: int
    end: int


def tree_problem(path: Path) -> str | None:
    """What makes a data file unsafe to read through LMDB; None where nothing does."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        try:
            tree = _tree(descriptor)
            if tree is None or tree.root == _NOTHING:
                return None
            found = sum(1 for _ in _values(descriptor, tree, tree.root, tree.depth))
        except (_Damage, struct.error) as damage:
            return str(damage)
    return None if found == tree.entries else f"it holds {found} of {tree.entries} records"


def _tree(descriptor: int) -> _Tree | None:
    """The file's tree; None where the layout is not the one that is known here."""
    first = os.pread(descriptor, _META.size, 0)
    page_size = _META.unpack(first)[2]
    if page_size not in {2**power for power in range(8, 17)}:
        return None
    second = os.pread(descriptor, _META.size, page_size)
    metas = [_META.unpack(meta) for meta in (first, second)]
    if any(meta[:2] != (_MAGIC, _VERSION) for meta in metas):
        return None
    newer = metas[metas[0][-1] < metas[1][-1]]
    _, _, _, _, flags, depth, _, _, _, entries, root, last, _ = newer
    if flags:
        raise _Damage(f"its tree has flags {flags}")
    end = (last + 1) * page_size
    if end > os.fstat(descriptor).st_size:
        raise _Damage(f"{end} bytes of it are in use, it has {os.fstat(descriptor).st_size}")
    return _Tree(page_size, depth, entries, root, end)


def _values(descriptor: int, tree: _Tree, number: int, depth: int) -> Iterator[None]:
    """One item for each value below a page that lies within the file."""
    page = _page(descriptor, tree, number, _LEAF if depth == 1 else _BRANCH)
    for node in _nodes(page, number):
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        after_key = node + _NODE.size + key_size
        if depth > 1:
            _require(after_key <= len(page), number)
            yield from _values(descriptor, tree, low | high << 16 | flags << 32, depth - 1)
            continue
        size = low | high << 16
        if flags == _ELSEWHERE:
            _require(after_key + _NUMBER.size <= len(page), number)
            place = _NUMBER.unpack_from(page, after_key)[0] * tree.page_size + _HEADER.size
            _require(_FIRST_PAGE * tree.page_size <= place <= tree.end - size, number)
        else:
            _require(flags == 0 and after_key + size <= len(page), number)
        yield


def _page(descriptor: int, tree: _Tree, number: int, kind: int) -> bytes:
    """A page of keys, whose header says that it is the one that was looked for."""
    start = number * tree.page_size
    if not _FIRST_PAGE * tree.page_size <= start <= tree.end - tree.page_size:
        raise _Damage(f"its tree leads to page {number}, which is not there")
    page = os.pread(descriptor, tree.page_size, start)
    own, _, flags, _, _ = _HEADER.unpack_from(page)
    _require((own, flags) == (number, kind), number)
    return page


def _nodes(page: bytes, number: int) -> tuple[int, ...]:
    """Where the nodes of a page begin."""
    _, _, flags, lower, upper = _HEADER.unpack_from(page)
    fewest = _HEADER.size + 2 * (2 if flags == _BRANCH else 1)
    _require(fewest <= lower <= upper <= len(page) and lower % 2 == 0, number)
    nodes = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
    _require(all(upper <= node <= len(page) - _NODE.size for node in nodes), number)
    return nodes


def _require(sound: bool, number: int) -> None:
    if not sound:
        raise _Damage(f"page {number} of its tree is not as it was written")
