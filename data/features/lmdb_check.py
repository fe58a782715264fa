"""The check of an LMDB data file before LMDB maps it.

LMDB trusts its file. One flipped bit in the tree can kill the process without a message: of 16
flips in the stored size of a value 6 ended in SIGBUS, and 4 of 31 damaged branch or zeroed pages
ended in SIGABRT inside LMDB. Neither the size nor the seal of the store reveals such damage, and
its sha256 is too slow to compute at every start. This check reads only the pages of keys.

Layout: `mdb.c` of LMDB 0.9, data version 1. A file of another version is left to LMDB.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<16x II 8x 8x I 44x IHHQQQQQ Q Q")
_HEADER = struct.Struct("<Q H H H H")
_NODE = struct.Struct("<H H H H")
_PAGE_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 1
_NO_PAGE = 2**64 - 1
_FIRST_PAGE = 2  # after the two meta pages


class _DamageError(Exception):
    """A page that LMDB must not follow."""


@dataclass(frozen=True)
class _Tree:
    """The tree that the newer meta page describes; end: bytes of the file in use."""

    page_size: int
    depth: int
    entries: int
    root: int
    end: int


def find_damage(path: Path) -> str | None:
    """Return the damage that makes a data file unsafe to map, None if there is none."""
    with path.open("rb", buffering=0) as file:
        try:
            tree = _read_tree(file)
            if tree is None or tree.root == _NO_PAGE:
                return None
            count = sum(1 for _ in _values(file, tree, tree.root, tree.depth))
        except (_DamageError, struct.error) as error:
            return str(error)
    return None if count == tree.entries else f"it holds {count} of {tree.entries} records"


def _read_tree(file: FileIO) -> _Tree | None:
    """Read the newer meta page; return None for another layout."""
    first = file.read(_META.size)
    page_size = _META.unpack(first)[2]
    if page_size not in {2**power for power in range(8, 17)}:
        return None
    file.seek(page_size)
    second = file.read(_META.size)
    metas = [_META.unpack(meta) for meta in (first, second)]
    if any(meta[:2] != (_MAGIC, _VERSION) for meta in metas):
        return None
    newer = metas[metas[0][-1] < metas[1][-1]]
    _, _, _, _, flags, depth, _, _, _, entries, root, last, _ = newer
    if flags:
        raise _DamageError(f"its tree has flags {flags}")
    end = (last + 1) * page_size
    size = os.fstat(file.fileno()).st_size
    if end > size:
        raise _DamageError(f"{end} bytes of it are in use, it has {size}")
    return _Tree(page_size, depth, entries, root, end)


def _values(file: FileIO, tree: _Tree, number: int, depth: int) -> Iterator[None]:
    """Check the subtree of a page; yield once for each of its values."""
    page, nodes = _read_page(file, tree, number, _LEAF if depth == 1 else _BRANCH)
    for node in nodes:
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        after_key = node + _NODE.size + key_size
        if depth > 1:
            _require(after_key <= len(page), number)
            # a branch keeps the number of the child in the fields of size and flags
            yield from _values(file, tree, low | high << 16 | flags << 32, depth - 1)
            continue
        size = low | high << 16
        if flags == _OVERFLOW:  # the value has pages of its own
            _require(after_key + _PAGE_NUMBER.size <= len(page), number)
            first = _PAGE_NUMBER.unpack_from(page, after_key)[0] * tree.page_size
            start = first + _HEADER.size
            _require(_FIRST_PAGE * tree.page_size <= start <= tree.end - size, number)
        else:
            _require(flags == 0 and after_key + size <= len(page), number)
        yield


def _read_page(file: FileIO, tree: _Tree, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
    """Read a page of keys of the expected kind; return it and the offsets of its nodes."""
    start = number * tree.page_size
    if not _FIRST_PAGE * tree.page_size <= start <= tree.end - tree.page_size:
        raise _DamageError(f"its tree refers to page {number}, which does not exist")
    file.seek(start)
    page = file.read(tree.page_size)
    stored_number, _, flags, lower, upper = _HEADER.unpack_from(page)
    _require((stored_number, flags) == (number, kind), number)
    fewest = _HEADER.size + 2 * (2 if kind == _BRANCH else 1)
    _require(fewest <= lower <= upper <= len(page) and lower % 2 == 0, number)
    nodes = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
    _require(all(upper <= node <= len(page) - _NODE.size for node in nodes), number)
    return page, nodes


def _require(intact: bool, number: int) -> None:
    if not intact:
        raise _DamageError(f"page {number} of its tree is corrupt")
