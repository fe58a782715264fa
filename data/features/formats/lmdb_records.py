"""LMDB of region features: a pickle (ViLBERT, mmf), an npz or msgpack (UNITER) per image.

LMDB maps the file, and a damaged one could kill the process: its pages of keys are checked before.
Values may be packed with LZ4, as a frame or as a block after its size.
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
from a2cap.data.features.formats.array_values import Arrays, as_text, named_arrays
from a2cap.data.features.formats.dictionaries import read_pickle
from a2cap.data.features.formats.feature_source import Container, Entry, damaged
from a2cap.data.features.formats.numpy_files import SUFFIXES, read_npz
from a2cap.data.features.lmdb_check import find_damage
from a2cap.data.features.store_manifest import DATA_FILE
from a2cap.data.files.expansion import expansion_limit

_LISTS = (b"keys", b"__keys__", b"__len__", b"num_samples", b"image_ids")
"""Keys of what is not an image."""
_LZ4 = b"\x04\x22\x4d\x18"
_NOT_READ = {b"\x28\xb5\x2f\xfd": "Zstandard", b"\x1f\x8b": "gzip"} | {
    **dict.fromkeys((b"x\x01", b"x^", b"x\x9c", b"x\xda"), "zlib")
}
"""First bytes of values that a2 does not unpack."""
_NUMBERS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


def lmdb_container(path: Path, name: str) -> Container:
    """Return the records of an LMDB folder or file by key; InputError if it is damaged."""
    damage = find_damage(path / DATA_FILE if path.is_dir() else path)
    if damage is not None:
        raise damaged(repr(str(path)), damage)

    def opened() -> lmdb.Environment:
        try:
            return lmdb.open(
                str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False
            )
        except lmdb.Error as error:
            raise InputError(f"cannot read {str(path)!r}: {error}; copy it again") from error

    def entries() -> Iterator[Entry]:
        with opened() as environment, environment.begin() as transaction:
            for key, value in transaction.cursor():
                if key not in _LISTS:
                    image = key.decode(errors="replace")
                    suffix = next((s for s in SUFFIXES if image.endswith(s)), "")
                    yield Entry(image.removesuffix(suffix), partial(_record, value))

    def count() -> int:
        with opened() as environment, environment.begin() as transaction:
            lists = sum(transaction.get(key) is not None for key in _LISTS)
            return int(environment.stat()["entries"]) - lists

    return Container(f"{name!r} (LMDB)", entries, count)


def _record(value: bytes, *, may_be_packed: bool = True) -> Arrays:
    """Read a record by its first bytes; raise ValueError if they are unknown."""
    if value.startswith(b"PK"):
        return read_npz(partial(io.BytesIO, value))
    for mark, packer in _NOT_READ.items():
        if value.startswith(mark):
            raise ValueError(
                f"it is packed with {packer}, which a2 does not read; write it unpacked"
            )
    try:
        content = _frame(value) if may_be_packed and value.startswith(_LZ4) else None
        if content is None:
            # a pickle begins with 0x80 and its protocol, msgpack with a dictionary of up to 15
            return named_arrays(read_pickle(value) if value[:1] == b"\x80" else _unpacked(value))
    except Exception as error:  # msgpack raises types of its own
        content = _block(value, error) if may_be_packed else None
        if content is None:
            raise
    return _record(content, may_be_packed=False)


def _frame(value: bytes) -> bytes:
    try:
        frame = import_module("lz4.frame").LZ4FrameDecompressor()
    except ImportError:
        raise InputError("it is packed with LZ4; pip install lz4") from None
    content: bytes = frame.decompress(value, expansion_limit(len(value)))
    if not frame.eof:
        raise ValueError("its LZ4 frame is cut, or expands too much")
    return content


def _block(value: bytes, error: Exception) -> bytes | None:
    """Return the content of a block of LZ4 after its size; None for anything else."""
    size, length = int.from_bytes(value[:4], "little"), len(value)
    # numbers shrink at most 255-fold, and hardly grow
    if not 0.99 * length - 32 < size < min(255 * length, expansion_limit(length)):
        return None
    try:
        block = import_module("lz4.block")
    except ImportError:
        raise InputError(f"{error}; if it is packed with LZ4, pip install lz4") from None
    try:
        content: bytes = block.decompress(value)
    except block.LZ4BlockError:
        return None
    return content


def _unpacked(value: bytes) -> object:
    try:
        msgpack = import_module("msgpack")
    except ImportError:
        raise InputError("it is not a pickle; if it is msgpack, pip install msgpack") from None
    return msgpack.unpackb(value, raw=False, strict_map_key=False, object_hook=_array)


def _array(fields: dict[object, object]) -> object:
    """Return the array that msgpack-numpy wrote as fields, other fields as they are."""
    arrays = named_arrays(fields)
    if "nd" not in arrays or "data" not in arrays:
        return fields
    kind, data = as_text(arrays["type"]), arrays["data"]
    if kind.lstrip("<|=") not in _NUMBERS or not isinstance(data, bytes):
        raise ValueError(f"array of {kind!r:.20}, not of numbers")
    values: NDArray[np.generic] = np.frombuffer(data, kind)
    shape = arrays.get("shape")
    return values.reshape(shape) if arrays["nd"] and isinstance(shape, list | tuple) else values[0]
