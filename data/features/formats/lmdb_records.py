"""LMDB of region features: a pickle (ViLBERT, mmf), an npz or msgpack (UNITER) per image.

LMDB maps the file, and a damaged one could kill the process: its pages of keys are checked before.
"""

import io
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import as_text, named_arrays
from a2cap.data.features.formats.feature_format import Arrays, Entry
from a2cap.data.features.formats.numpy_files import SUFFIXES, read_npz
from a2cap.data.features.formats.pickled import read_pickle
from a2cap.data.features.lmdb_check import find_damage

DATA_FILE = "data.mdb"
_LISTS = (b"keys", b"__keys__", b"__len__", b"num_samples", b"image_ids")
"""Keys of what is not an image."""
_LZ4 = b"\x04\x22\x4d\x18"
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


class LmdbContainer:
    """The records of an LMDB folder or file, by key."""

    def __init__(self, path: Path) -> None:
        self._path, self.title = path, f"{path.name!r} (LMDB)"
        damage = find_damage(path / DATA_FILE if path.is_dir() else path)
        if damage is not None:
            raise InputError(f"{str(path)!r} is damaged: {damage}; download it again")
        with self._opened() as environment, environment.begin() as transaction:
            lists = sum(transaction.get(key) is not None for key in _LISTS)
            self._count = environment.stat()["entries"] - lists

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        with self._opened() as environment, environment.begin() as transaction:
            for key, value in transaction.cursor():
                if key not in _LISTS:
                    name = key.decode(errors="replace")
                    suffix = next((one for one in SUFFIXES if name.endswith(one)), "")
                    yield Entry(name.removesuffix(suffix), partial(_record, value))

    def _opened(self) -> lmdb.Environment:
        try:
            is_folder = self._path.is_dir()
            return lmdb.open(
                str(self._path), subdir=is_folder, readonly=True, lock=False, readahead=False
            )
        except lmdb.Error as error:
            raise InputError(f"cannot read {str(self._path)!r}: {error}; copy it again") from error


def _record(value: bytes) -> Arrays:
    """Read a record by its first bytes; raise ValueError if they are unknown."""
    if value.startswith(b"PK"):
        return read_npz(io.BytesIO(value))
    if value.startswith(_LZ4):
        raise ValueError("it is packed with LZ4, which a2 does not read; write it unpacked")
    # a pickle begins with 0x80 and its protocol, msgpack with a dictionary of up to 15, or more
    is_pickle = value[:1] == b"\x80"
    return named_arrays(read_pickle(value) if is_pickle else _unpacked(value))


def _unpacked(value: bytes) -> object:
    try:
        msgpack = import_module("msgpack")
    except ImportError:
        raise InputError("it is not a pickle; if it is msgpack, pip install msgpack") from None
    return msgpack.unpackb(value, raw=False, strict_map_key=False, object_hook=_array)


def _array(fields: dict[object, object]) -> object:
    """Return the array that msgpack-numpy wrote as fields, other fields as they are."""
    named = named_arrays(fields)
    if "nd" not in named or "data" not in named:
        return fields
    kind, data = as_text(named["type"]), named["data"]
    if kind.lstrip("<|=") not in _NUMBERS or not isinstance(data, bytes):
        raise ValueError(f"array of {kind!r:.20}, not of numbers")
    values: NDArray[np.generic] = np.frombuffer(data, kind)
    shape = named.get("shape")
    return values.reshape(shape) if named["nd"] and isinstance(shape, list | tuple) else values[0]
