"""Region features of any known file or folder, recognised by content."""

import gzip
import io
import logging
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

from safetensors.numpy import load_file

from a2cap.data.errors import InputError
from a2cap.data.features.formats.dictionaries import dictionary_container, read_pickle
from a2cap.data.features.formats.feature_source import Container, FeatureSource, ReadHints, damaged
from a2cap.data.features.formats.hdf5 import hdf5_container
from a2cap.data.features.formats.lmdb_records import lmdb_container
from a2cap.data.features.formats.numpy_files import (
    SUFFIXES,
    OpenFile,
    att_box_container,
    numpy_container,
    opener,
    read_array,
)
from a2cap.data.features.formats.own_files import parquet_container, store_container, tar_container
from a2cap.data.features.formats.tsv import tsv_container
from a2cap.data.features.source_files import matches
from a2cap.data.features.store_manifest import DATA_FILE, is_store
from a2cap.data.files.expansion import expansion_limit, read_member
from a2cap.data.files.image_file import image_size
from a2cap.data.files.json_file import read_json
from a2cap.data.files.pickles import OLD_TORCH
from a2cap.data.identities import Identities
from a2cap.data.image_ids import IMAGE_SUFFIXES, IdRule, find_images, image_id, sample_ids

logger = logging.getLogger(__name__)

_BESIDE = {".jsonl", ".json", ".md", ".txt"}
"""Suffixes of files beside features, such as lists of skipped images and indices of rows."""
_REMEDY = (
    "name a folder of images in place of the COCO file, or read the features by data.features with "
    "data.ids"
)
_RESULT = "features.lmdb"
"""The store in a result of `a2 extract`."""


def open_features(path: Path, hints: ReadHints | None = None) -> FeatureSource:
    """Open a file, folder or pattern by its content; raise InputError for an unknown one."""
    names = {path: path.name} if path.exists() else {p: str(p) for p in matches(path)}
    containers = [
        container
        for p, name in names.items()
        for container in (_folder(p) if p.is_dir() else _file(p, name))
    ]
    if not containers:
        raise InputError(
            f"no region features at {str(path)!r}; name a store, a TSV or HDF5 file, a folder of "
            "npz, or another layout of docs/guide/features.md"
        )
    return FeatureSource(containers, hints or ReadHints())


def hints_with_sizes(
    sizes: Path | None, source: Path, hints: ReadHints, rule: IdRule = "number"
) -> ReadHints:
    """Return `hints` with the sizes in a folder of images or a COCO file.

    Without other ids in `hints`, names of images are linked by the ids and files in the COCO file.
    Raises InputError if an image of that lacks a name or a size.
    """
    if sizes is None:
        return hints
    if sizes.is_dir():
        files = find_images(sizes, rule)
        # read from the headers on demand
        return replace(hints, sizes=lambda name: image_size(files[name]) if name in files else None)
    stated, pairs = {}, []
    try:
        for image in cast("dict[str, Any]", read_json(sizes))["images"]:
            identity = image_id(image["file_name"], rule)
            stated[identity] = int(image["width"]), int(image["height"])
            pairs.append((identity, image.get("id")))
        identities = Identities(pairs, rule=rule)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{sizes.name!r} lacks file_name, width or height of an image; "
            "name a COCO captions, instances or image-info file"
        ) from error
    if hints.ids is None and identities:
        read = identities.reader(f"the features of {str(source)!r}", remedy=_REMEDY)
        hints = replace(hints, ids=read.linked)
    return replace(hints, sizes=stated.get)


def _load_torch(path: Path) -> object:
    from a2cap.extract.weights.torch_files import load_torch_arrays  # imports torch

    return load_torch_arrays(path)


def _load_npy(path: Path) -> object:
    return read_array(path.read_bytes(), may_pickle=True)


_KINDS: tuple[tuple[int, bytes, Callable[[Path, str], Container]], ...] = (
    (0, b"PAR1", parquet_container),
    (257, b"ustar", tar_container),
    (0, b"\x89HDF\r\n\x1a\n", hdf5_container),
    (16, b"\xde\xc0\xef\xbe", lmdb_container),
    (0, OLD_TORCH, partial(dictionary_container, _load_torch)),
    (0, b"\x80", partial(dictionary_container, lambda path: read_pickle(path.read_bytes()))),
    (0, b"\x93NUMPY", partial(dictionary_container, _load_npy)),
    (7, b"\0{", partial(dictionary_container, load_file)),  # after the header's length
)
"""Position and bytes of the mark of each kind of file, and its reader."""
_HEAD = max(position + len(mark) for position, mark, _ in _KINDS)


def _file(path: Path, name: str) -> list[Container]:
    """Return the containers of a file, called `name`."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PK\x03\x04"):
        return _zip(path, name)
    for position, mark, container in _KINDS:
        if head.startswith(mark, position):
            return [container(path, name)]
    limit = expansion_limit(path.stat().st_size)
    if head.startswith(b"\x1f\x8b"):
        with (
            suppress(OSError, EOFError, zlib.error),
            gzip.open(path) as file,
        ):  # of damage, the reader tells
            head = file.read(_HEAD)
        if any(head.startswith(mark, position) for position, mark, _ in _KINDS):
            raise InputError(f"{name!r} is packed with gzip, and not a TSV; unpack it")
        return [tsv_container(lambda: cast(BinaryIO, gzip.open(path)), name, limit)]
    return [tsv_container(opener(path), name, limit)]


def _folder(path: Path) -> list[Container]:
    for store in (path, path / _RESULT):
        if is_store(store):
            return [store_container(store)]
    if (path / DATA_FILE).is_file():
        return [lmdb_container(path, path.name)]
    if any(path.glob("*_att")):
        return [att_box_container(path)]
    files = {
        str(file.relative_to(path)): file
        for file in sorted(path.rglob("*"))
        if file.is_file() and not _is_beside(file.relative_to(path))
    }
    openers = {name: opener(file) for name, file in files.items()}
    if arrays := _arrays_in(openers, path):
        return [numpy_container(arrays, path.name)]
    return [container for name, file in files.items() for container in _file(file, name)]


def _is_beside(file: Path) -> bool:
    """Return True for a hidden file, and for one that is expected beside features."""
    is_hidden = any(part.startswith(".") for part in file.parts)
    is_other = file.suffix.lower() in IMAGE_SUFFIXES.union(_BESIDE)
    return is_hidden or is_other or file.name.endswith("_imgid2idx.pkl")


def _zip(path: Path, name: str) -> list[Container]:
    try:
        with ZipFile(path) as archive:
            # not is_dir(), which fails for a damaged name that is empty
            members = [m for m in archive.infolist() if not m.filename.endswith("/")]
    except (BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise damaged(repr(name), error) from error
    names = [m.filename for m in members]
    if any(PurePosixPath(n).name == "data.pkl" for n in names):
        return [dictionary_container(_load_torch, path, name)]
    if path.suffix == ".npz":  # the arrays of one image
        return [numpy_container({path.name: opener(path)}, name)]
    if arrays := _arrays_in({n: partial(_unpacked, path, n) for n in names}, path):
        return [numpy_container(arrays, name)]
    lines = [_member(path, m) for m in members if "tsv" in m.filename.lower().split(".")[1:]]
    if not lines:
        raise InputError(f"zip {name!r} has no TSV, npz or npy: {sample_ids(names, 3)}; unpack it")
    return lines


def _arrays_in(files: Mapping[str, OpenFile], path: Path) -> dict[str, OpenFile]:
    """Return the NumPy files among others, which are named if there are both."""
    arrays = {name: files[name] for name in files if name.endswith(SUFFIXES)}
    if arrays and len(arrays) < len(files):
        unclaimed = sorted({*files} - {*arrays})
        logger.warning("%r: only npz and npy are read, not %s", str(path), sample_ids(unclaimed))
    return arrays


def _member(path: Path, member: ZipInfo) -> Container:
    def opened() -> BinaryIO:
        return cast(BinaryIO, ZipFile(path).open(member))

    return tsv_container(opened, member.filename, expansion_limit(member.compress_size))


def _unpacked(path: Path, name: str) -> BinaryIO:
    """Return a member of a zip, which can seek."""
    with ZipFile(path) as archive:
        return io.BytesIO(read_member(archive, name))
