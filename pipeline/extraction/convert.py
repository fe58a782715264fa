"""Conversion of region features between formats, verified by reading the result back."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.feature_record import FeatureType
from a2cap.data.features.formats.feature_format import (
    ContentChecksum,
    ImageFeatures,
    Sizes,
    Source,
    Target,
)
from a2cap.data.features.formats.hdf5 import M2Source, M2Target
from a2cap.data.features.formats.image_sizes import ImageSizes, sizes_in_coco
from a2cap.data.features.formats.npz import (
    NpzSource,
    NpzTarget,
    att_box_files,
    att_box_source,
    att_name,
    milvlg_files,
    read_milvlg,
)
from a2cap.data.features.formats.parquet import ParquetSource, write_parquet
from a2cap.data.features.formats.tar import TarSource, write_tar
from a2cap.data.features.formats.tsv import TsvSource, TsvTarget
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import DATA_FILE, is_store
from a2cap.data.features.writer import FeatureWriter, StoreWriteError
from a2cap.data.files.atomic import replacing, write_durably
from a2cap.data.files.sealed_folder import MANIFEST
from a2cap.data.regions import Regions
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.engine.progress import track

Format = Literal["a2", "caffe", "lxmert", "att-box", "milvlg", "m2", "tar", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_HALF: tuple[Format, ...] = ("a2", "tar", "parquet")
"""Formats that can have float16."""

_HDF5, _PARQUET, _TAR = b"\x89HDF\r\n\x1a\n", b"PAR1", b"ustar"
_TAR_AT = 257
"""Position of its mark in a tar."""


@dataclass(frozen=True)
class Conversion:
    """The summary of a finished conversion."""

    count: int
    regions: tuple[int, int]  # fewest and most per image
    checksum: str  # of the content, equal in every format
    skipped: list[SkippedItem]
    ran: bool = True  # False if an earlier run had finished


class StoreTarget:
    """The writer of a feature store of a2."""

    def __init__(self, path: Path, *, dtype: FeatureType) -> None:
        self._writer = FeatureWriter(path, dtype=dtype)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._writer

    def add(self, image_id: str, regions: Regions) -> None:
        """Add one image."""
        self._writer.add(image_id, regions)

    def finish(self) -> None:
        """Seal the store."""
        self._writer.seal()

    def close(self) -> None:
        """Commit the added images."""
        self._writer.flush()
        self._writer.close()


class FileTarget(StoreTarget):
    """The writer of a tar or Parquet file, by way of a store at `path.partial`."""

    def __init__(self, path: Path, *, form: Format, dtype: FeatureType) -> None:
        if form == "parquet":
            load_pyarrow(path.name)
        super().__init__(path.with_name(f"{path.name}.partial"), dtype=dtype)
        self._path, self._form, self._dtype = path, form, dtype

    def finish(self) -> None:
        """Write the file, and remove the store."""
        self._writer.flush()
        with replacing(self._path) as temporary:
            if self._form == "tar":
                write_tar(temporary, self._writer.records())
            else:
                write_parquet(temporary, self._writer.records(), self._dtype, self._writer.width)
        self._writer.close()
        shutil.rmtree(self._writer.path)

    def close(self) -> None:
        """Commit the added images, unless they are in the file."""
        if self._writer.path.exists():
            super().close()


class StoreSource:
    """The images of a feature store of a2."""

    def __init__(self, path: Path) -> None:
        self._store = FeatureStore(path)

    def __iter__(self) -> Iterator[ImageFeatures | SkippedItem]:
        for image_id in self._store:
            try:
                yield ImageFeatures(image_id, self._store[image_id])
            except StoreError as error:
                yield SkippedItem(image_id, str(error))

    def __len__(self) -> int:
        return len(self._store)


def convert(
    source: Path,
    target: Path,
    *,
    form: Format,
    dtype: FeatureType = "float16",
    sizes: Path | None = None,
    prefix: str = "",
) -> Conversion:
    """Convert `source`, whose format is detected, to `target`; continue or find an earlier run.

    sizes: folder of the images or a COCO file, for formats without image sizes; prefix: of LXMERT's
    names. Raises InputError if the target exists, the format of the source is unknown, too many of
    its images are unusable or all are, and StoreError if the result differs from the source.
    """
    arguments = {"form": form, "dtype": dtype, "sizes": str(sizes), "prefix": prefix}
    record = {"arguments": arguments, "source": _state_of(source)}
    earlier = _earlier_run(target, record)
    if earlier is not None:
        return earlier
    _require_new(target)
    opened = open_source(source, read_sizes(sizes))
    writer = _open_target(target, form, dtype=dtype, prefix=prefix)
    # the checksum is that of the rounded features, because float16 loses precision as intended
    stored = np.dtype(dtype if form in _HALF else "float32")
    done = _ConvertedImages()
    try:
        with track("convert", total=len(opened)) as progress:
            for item in opened:
                if isinstance(item, SkippedItem):
                    done.skipped.append(item)
                else:
                    done.add(item, writer, stored)
                check_skip_limit(done.skipped, len(opened), "images")
                progress.advance(1)
        if not done.counts:
            first = "".join(f", first {one.image_id!r}: {one.reason}" for one in done.skipped[:1])
            raise InputError(
                f"no image of {str(source)!r} can be read{first}; download the file again"
            )
        writer.finish()
    finally:
        writer.close()
    _write_skipped(target, done.skipped)
    _require_equal(target, done)
    counts = min(done.counts), max(done.counts)
    made = Conversion(done.checksum.count, counts, done.checksum.hexdigest(), done.skipped)
    record |= {"result": asdict(made), "target": _state_of(target)}
    write_durably(_record_file(target), json.dumps(record).encode())
    return made


def _earlier_run(target: Path, record: Mapping[str, object]) -> Conversion | None:
    """Return the result of an equal conversion if neither source nor target changed since."""
    try:
        found = json.loads(_record_file(target).read_text())
        if found != {**record, "target": _state_of(target), "result": found["result"]}:
            return None
        result = found["result"] | {"ran": False, "regions": tuple(found["result"]["regions"])}
        skipped = [SkippedItem(**item) for item in result["skipped"]]
        return Conversion(**result | {"skipped": skipped})
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _state_of(path: Path) -> str:
    """Return a digest of the files at a path: names, sizes and times, without reading them."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _record_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.conversion.json")


def open_source(path: Path, sizes: Sizes) -> Source:
    """Open a file or folder by its format; raise InputError for an unknown one."""
    if path.is_dir():
        if is_store(path):
            return StoreSource(path)
        if any(path.glob("*_att")):
            return att_box_source(path, sizes=sizes)
        if any(path.glob("*.npz")):
            return NpzSource(path, read_milvlg)
    elif path.is_file():
        return _open_file(path, sizes)
    raise InputError(
        f"no region features at {str(path)!r}; name a store, a TSV or HDF5 file, or a folder of npz"
    )


def _open_file(path: Path, sizes: Sizes) -> Source:
    with path.open("rb") as file:
        head = file.read(_TAR_AT + len(_TAR))
    if head.startswith(_HDF5):
        return M2Source(path, sizes=sizes)
    if head.startswith(_PARQUET):
        return ParquetSource(path)
    return TarSource(path) if head.endswith(_TAR) else TsvSource(path)


@dataclass
class _ConvertedImages:
    """The images read so far, for the summary and the comparison."""

    checksum: ContentChecksum = field(default_factory=ContentChecksum)
    skipped: list[SkippedItem] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    width: int = 0

    def add(self, item: ImageFeatures, target: Target, stored: np.dtype[Any]) -> None:
        """Add an image to the target, with features rounded to `stored`, or skip it."""
        image_id, regions = item.image_id, item.regions
        try:
            self._check(image_id, regions)
            if image_id not in target:  # else from an interrupted run
                target.add(image_id, regions)
        except StoreWriteError:
            raise
        except (InputError, StoreError) as error:
            self.skipped.append(SkippedItem(image_id, str(error)))
            return
        rounded = replace(regions, features=regions.features.astype(stored))
        self.checksum.add(image_id, rounded)
        self.counts.append(len(regions))
        self.sizes[image_id] = regions.width, regions.height

    def _check(self, image_id: str, regions: Regions) -> None:
        found = regions.features.shape[1]
        self.width = self.width or found
        if image_id in self.sizes:
            raise InputError(f"duplicate of image {image_id!r}; keep one")
        if found != self.width:
            raise InputError(f"{found} features per region, not {self.width}")


def _require_new(target: Path) -> None:
    # an unsealed store is an interrupted conversion, which can be resumed
    if (target / MANIFEST).exists() or (target.exists() and not (target / DATA_FILE).exists()):
        raise InputError(f"{str(target)!r} already exists; name another path, or remove it")


def read_sizes(path: Path | None) -> Sizes:
    """Return the sizes of the images in a folder or a COCO file, none without a path."""
    if path is None:
        return {}
    return ImageSizes(path) if path.is_dir() else sizes_in_coco(path)


def _open_target(target: Path, form: Format, *, dtype: FeatureType, prefix: str) -> Target:
    target.parent.mkdir(parents=True, exist_ok=True)
    if form == "a2":
        return StoreTarget(target, dtype=dtype)
    if form == "tar" or form == "parquet":  # noqa: PLR1714  (mypy narrows no tuple)
        return FileTarget(target, form=form, dtype=dtype)
    if form == "att-box":
        return NpzTarget(target, name=att_name, files=att_box_files)
    if form == "milvlg":
        return NpzTarget(target, name="{}.npz".format, files=milvlg_files)
    if form == "m2":
        return M2Target(target)
    return TsvTarget(target, columns=form, prefix=prefix)


def _write_skipped(target: Path, skipped: list[SkippedItem]) -> None:
    if skipped:
        lines = (json.dumps({"id": item.image_id, "reason": item.reason}) for item in skipped)
        text = "".join(f"{line}\n" for line in lines)
        write_durably(skipped_file(target), text.encode())


def skipped_file(target: Path) -> Path:
    """Return the list of skipped images, which is beside the target because that may be a file."""
    return target.with_name(f"{target.name}.skipped.jsonl")


def _require_equal(target: Path, done: _ConvertedImages) -> None:
    """Read the result and compare its checksum."""
    found = ContentChecksum()
    for item in open_source(target, done.sizes):
        if isinstance(item, ImageFeatures):
            found.add(item.image_id, item.regions)
    if found.hexdigest() != done.checksum.hexdigest():
        raise StoreError(
            f"{str(target)!r} differs from the source: {found.count} images of "
            f"{done.checksum.count}; remove it and convert again"
        )
