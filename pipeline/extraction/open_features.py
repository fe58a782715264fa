"""Region features of any known file or folder, recognised by content."""

import gzip
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from zipfile import BadZipFile, ZipFile

from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.formats.dictionaries import (
    dictionary_container,
    load_pickle,
    load_safetensors,
)
from a2cap.data.features.formats.feature_format import (
    Container,
    ImageFeatures,
    Reading,
    Source,
)
from a2cap.data.features.formats.hdf5 import Hdf5Container
from a2cap.data.features.formats.image_sizes import ImageSizes, read_coco_sizes
from a2cap.data.features.formats.layout_source import LayoutSource
from a2cap.data.features.formats.lmdb_records import DATA_FILE, LmdbContainer
from a2cap.data.features.formats.numpy_files import SUFFIXES, att_box_container, numpy_container
from a2cap.data.features.formats.parquet import ParquetSource
from a2cap.data.features.formats.tar import TarSource
from a2cap.data.features.formats.tsv import OpenFile, TsvContainer
from a2cap.data.features.source_files import matches
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import is_store
from a2cap.data.files.expansion import expansion_limit, read_member
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.image_ids import IMAGE_SUFFIXES, IdRule, sample_ids

logger = logging.getLogger(__name__)

_HDF5, _PARQUET, _TAR, _GZIP = b"\x89HDF\r\n\x1a\n", b"PAR1", b"ustar", b"\x1f\x8b"
_TAR_AT = 257
"""Position of its mark in a tar."""
_LMDB, _LMDB_AT = b"\xde\xc0\xef\xbe", 16
_TORCH = b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The pickled number with which torch.save began before it wrote zips."""
_ZIP = b"PK\x03\x04"
_BESIDE = {".jsonl", ".json", ".md", ".txt"}
"""Suffixes of files beside features, such as lists of skipped images and indices of rows."""
_REMEDY = (
    "name a folder of images in place of the COCO file, or read the features by data.features with "
    "data.ids"
)
_RESULT = "features.lmdb"
"""The store in a result of `a2 extract`."""


class StoreSource:
    """The images of a feature store of a2."""

    title = "feature store of a2"

    def __init__(self, path: Path, reading: Reading) -> None:
        self._store, self._ids = FeatureStore(path), reading.own_id

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for key in self._store:
            image_id = self._ids(key)
            try:
                yield ImageFeatures(image_id, self._store[key])
            except StoreError as error:
                yield SkippedItem(image_id, str(error))

    def __len__(self) -> int:
        return len(self._store)


class JoinedSource:
    """The images of several files, one after the other."""

    def __init__(self, sources: dict[str, Source]) -> None:
        self._sources = sources

    @property
    def title(self) -> str:
        """The files; they may be of several layouts."""
        titles = [source.title for source in self._sources.values()]
        return f"{len(titles)} files: {', '.join(titles)}"

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for name, source in self._sources.items():
            for item in source:
                if isinstance(item, SkippedItem):
                    yield SkippedItem(item.image_id, f"{name}: {item.reason}")
                else:
                    yield item

    def __len__(self) -> int:
        return sum(map(len, self._sources.values()))


def open_features(path: Path, reading: Reading | None = None) -> Source:
    """Open a file, folder or pattern by its content; raise InputError for an unknown one."""
    return _Opener(reading or Reading()).open(path)


def reading_by_sizes(
    sizes: Path | None, source: Path, way: Reading, rule: IdRule = "number"
) -> Reading:
    """Return `way` with the sizes in a folder of images or a COCO file.

    Without other ids in `way`, names of images are linked by the ids and files in the COCO file.
    """
    if sizes is None:
        return way
    if sizes.is_dir():
        return replace(way, sizes=ImageSizes(sizes, rule))
    found, identities = read_coco_sizes(sizes, rule)
    if way.ids is None and identities:
        read = identities.reader(f"the features of {str(source)!r}", remedy=_REMEDY)
        way = replace(way, ids=read.linked)
    return replace(way, sizes=found)


@dataclass(frozen=True)
class _Opener:
    """The opener of region features."""

    reading: Reading

    def open(self, path: Path) -> Source:
        if path.is_dir():
            return self._folder(path)
        if path.is_file():
            return self._file(path)
        opened = {str(one): self.open(one) for one in matches(path)}
        return self._joined(opened, path)

    def _joined(self, sources: dict[str, Source], path: Path) -> Source:
        if not sources:
            raise InputError(
                f"no region features at {str(path)!r}; name a store, a TSV or HDF5 file, a folder "
                "of npz, or another layout of docs/guide/features.md"
            )
        return next(iter(sources.values())) if len(sources) == 1 else JoinedSource(sources)

    def _read(self, container: Container) -> Source:
        return LayoutSource(container, self.reading)

    def _folder(self, path: Path) -> Source:
        for store in (path, path / _RESULT):
            if is_store(store):
                return StoreSource(store, self.reading)
        if (path / DATA_FILE).is_file():
            return self._read(LmdbContainer(path))
        if any(path.glob("*_att")):
            return self._read(att_box_container(path))
        files = {file.relative_to(path): file for file in sorted(path.rglob("*"))}
        names = [
            str(name)
            for name, file in files.items()
            if not any(part.startswith(".") for part in name.parts)
            and name.suffix.lower() not in IMAGE_SUFFIXES.union(_BESIDE)
            and not name.name.endswith("_imgid2idx.pkl")
            and file.is_file()
        ]
        if arrays := _arrays_in(names, path):
            return self._read(numpy_container(arrays, partial(_opened, path), repr(path.name)))
        return self._joined({name: self._file(path / name) for name in names}, path)

    def _file(self, path: Path) -> Source:  # noqa: PLR0911 - one for each kind of file
        with path.open("rb") as file:
            head = file.read(_TAR_AT + len(_TAR))
        if head.startswith(_PARQUET):
            return ParquetSource(path, self.reading)
        if head.endswith(_TAR):
            return TarSource(path, self.reading)
        if head.startswith(_HDF5):
            return self._read(Hdf5Container(path))
        if head.startswith(_ZIP):
            return self._zip(path)
        if head[_LMDB_AT:].startswith(_LMDB):
            return self._read(LmdbContainer(path))
        for mark, load in ((_TORCH, _load_torch), (b"\x80", load_pickle)):
            if head.startswith(mark):
                return self._read(dictionary_container(path, load))
        if head[7:9] == b"\0{":  # after the length of the header
            return self._read(dictionary_container(path, load_safetensors))
        limit = expansion_limit(path.stat().st_size)
        opener = partial(gzip.open, path) if head.startswith(_GZIP) else partial(path.open, "rb")
        return self._read(TsvContainer(cast(OpenFile, opener), path.name, limit))

    def _zip(self, path: Path) -> Source:
        try:
            with ZipFile(path) as archive:
                members = [one for one in archive.infolist() if not one.is_dir()]
        except (BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise InputError(f"{path.name!r} is damaged: {error}; download it again") from error
        names = [one.filename for one in members]
        if any(PurePosixPath(name).name == "data.pkl" for name in names):
            return self._read(dictionary_container(path, _load_torch))
        if path.suffix == ".npz":  # the arrays of one image
            opener = partial(_opened, path.parent)
            return self._read(numpy_container([path.name], opener, repr(path.name)))
        if arrays := _arrays_in(names, path):
            return self._read(numpy_container(arrays, partial(_unpacked, path), repr(path.name)))
        sources = {}
        for one in members:
            if one.filename.lower().endswith(".tsv") or ".tsv." in one.filename.lower():
                limit = expansion_limit(one.compress_size)
                opened = partial(_member, path, one.filename)
                sources[one.filename] = self._read(TsvContainer(opened, one.filename, limit))
        if not sources:
            raise InputError(
                f"zip {path.name!r} has no TSV, npz or npy: {', '.join(names[:3])}; unpack it"
            )
        return self._joined(sources, path)


def _arrays_in(names: list[str], path: Path) -> list[str]:
    """Return the NumPy files among others, which are named if there are both."""
    arrays = [name for name in names if name.endswith(SUFFIXES)]
    if arrays and len(arrays) < len(names):
        others = sorted({*names} - {*arrays})
        logger.warning("%r: only npz and npy are read, not %s", str(path), sample_ids(others))
    return arrays


def _load_torch(path: Path) -> object:
    from a2cap.extract.weights.torch_files import load_torch_arrays  # imports torch

    return load_torch_arrays(path)


def _opened(folder: Path, name: str) -> BinaryIO:
    return (folder / name).open("rb")


def _member(path: Path, name: str) -> BinaryIO:
    return cast(BinaryIO, ZipFile(path).open(name))


def _unpacked(path: Path, name: str) -> BinaryIO:
    """Return a member of a zip, which can seek."""
    with ZipFile(path) as archive:
        return io.BytesIO(read_member(archive, name))
