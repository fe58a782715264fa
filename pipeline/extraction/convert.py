"""Conversion of region features between formats, verified by reading the result back."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.box_check import BoxOrder
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.feature_record import FeatureType, Record, decode_regions
from a2cap.data.features.formats.feature_format import (
    ContentChecksum,
    Ids,
    ImageFeatures,
    Reading,
)
from a2cap.data.features.formats.hdf5 import write_m2
from a2cap.data.features.formats.layouts import CAFFE, LXMERT, M2, Layout
from a2cap.data.features.formats.number_types import NumberType
from a2cap.data.features.formats.numpy_files import att_box_files, milvlg_files, write_npz
from a2cap.data.features.formats.parquet import write_parquet
from a2cap.data.features.formats.tar import write_tar
from a2cap.data.features.formats.tsv import write_tsv
from a2cap.data.features.source_files import source_files
from a2cap.data.features.store_manifest import DATA_FILE
from a2cap.data.features.writer import FeatureWriter, StoreWriteError
from a2cap.data.files.atomic import replacing, write_durably
from a2cap.data.files.sealed_folder import MANIFEST
from a2cap.data.image_ids import IdRule
from a2cap.data.regions import Regions
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.open_features import open_features, reading_by_sizes

Format = Literal["a2", "caffe", "lxmert", "att-box", "milvlg", "m2", "tar", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

_HALF: tuple[Format, ...] = ("a2", "tar", "parquet")
"""Formats that can have float16."""
_NUMBERED: tuple[Format, ...] = ("caffe", "att-box", "m2")
"""Formats whose ids are numbers."""
_TSV: dict[str, Layout] = {"caffe": CAFFE, "lxmert": LXMERT}


@dataclass(frozen=True)
class Conversion:
    """The summary of a finished conversion."""

    count: int
    regions: tuple[int, int]  # fewest and most per image
    width: int  # features per region
    checksum: str  # of the content, equal in every format
    skipped: list[SkippedItem]
    ran: bool = True  # False if an earlier run had finished


def convert(
    source: Path,
    target: Path,
    *,
    form: Format,
    dtype: FeatureType = "float16",
    sizes: Path | None = None,
    prefix: str = "",
    order: BoxOrder = "xyxy",
    number_type: NumberType = "float32",
    ids: Ids | None = None,
    rule: IdRule = "number",
) -> Conversion:
    """Convert `source`, whose format is detected, to `target`; continue or find an earlier run.

    sizes: folder of the images or a COCO file, for formats without image sizes.
    prefix: of LXMERT's names.
    order: of the numbers of a box in the source.
    number_type: of its features in base64.
    ids: image id of a name in the source, by default that of the file.
    rule: of the ids of files with sizes.
    Raises InputError if the target exists, the format of the source is unknown, too many of its
    images are unusable or most are of another convention, and StoreError if the result differs from
    the source.
    """
    arguments = {"form": form, "dtype": dtype, "sizes": str(sizes), "prefix": prefix}
    arguments |= {"order": order, "number_type": number_type}
    record = {"arguments": arguments, "source": _state_of(source)}
    earlier = _earlier_run(target, record)
    if earlier is not None:
        return earlier
    _require_new(target)
    if form == "parquet":
        load_pyarrow(target.name)
    way = Reading(order=order, number_type=number_type, ids=ids)
    opened = open_features(source, reading_by_sizes(sizes, source, way, rule))
    stored: FeatureType = dtype if form in _HALF else "float32"
    done = _ConvertedImages(target, form, stored)
    count = len(opened)  # of a TSV, this reads the whole file
    target.parent.mkdir(parents=True, exist_ok=True)
    # a file is written from a store, which resumes
    store = target if form == "a2" else target.with_name(f"{target.name}.partial")
    with FeatureWriter(store, dtype=stored) as writer:
        with track("convert", total=count) as progress:
            for item in opened:
                if isinstance(item, SkippedItem):
                    done.skipped.append(item)
                else:
                    done.add(item, writer)
                check_skip_limit(done.skipped, count, "images")
                progress.advance(1)
        if not done.counts:
            first = "".join(f", first {one.image_id!r}: {one.reason}" for one in done.skipped[:1])
            raise InputError(f"no image of {str(source)!r} can be read{first}")
        if form == "a2":
            writer.seal()
        else:
            writer.flush()
            with replacing(target) as temporary:
                # not what a stopped conversion of another source left
                records = (one for one in writer.records() if _id(one) in done.sizes)
                _write_file(temporary, records, form, (stored, writer.width), prefix=prefix)
    if form != "a2":
        shutil.rmtree(store)
    done.mark_read_images()
    _write_skipped(target, done.skipped)
    _require_equal(target, done)
    counts = min(done.counts), max(done.counts)
    made = Conversion(
        done.checksum.count, counts, done.width, done.checksum.hexdigest(), done.skipped
    )
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
    files = sorted(source_files(path).values())
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _record_file(target: Path) -> Path:
    return target.with_name(f"{target.name}.conversion.json")


@dataclass
class _ConvertedImages:
    """The images read so far, for the summary and the comparison."""

    target: Path
    form: Format
    dtype: FeatureType
    checksum: ContentChecksum = field(default_factory=ContentChecksum)
    skipped: list[SkippedItem] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    width: int = 0

    def add(self, item: ImageFeatures, writer: FeatureWriter) -> None:
        """Add an image to the store, or skip it."""
        image_id, regions = item.image_id, item.regions
        try:
            self._check(image_id, regions)
            if image_id not in writer:  # else from an interrupted run
                writer.add(image_id, regions)
        except StoreWriteError:
            raise
        except (InputError, StoreError) as error:
            self.skipped.append(SkippedItem(image_id, str(error)))
            return
        # the checksum is that of the rounded features, as float16 loses precision as intended
        rounded = replace(regions, features=regions.features.astype(self.dtype))
        self.checksum.add(image_id, rounded)
        self.counts.append(len(regions))
        self.sizes[image_id] = regions.width, regions.height

    def mark_read_images(self) -> None:
        """State of skipped records that another record of the same image was read."""
        for number, item in enumerate(self.skipped):
            if item.image_id in self.sizes and not item.reason.startswith("duplicate "):
                reason = f"{item.reason}; another record of the image was read"
                self.skipped[number] = SkippedItem(item.image_id, reason)

    def _check(self, image_id: str, regions: Regions) -> None:
        found = regions.features.shape[1]
        self.width = self.width or found
        if image_id in self.sizes:
            raise InputError(f"duplicate of image {image_id!r}; keep one")
        if found != self.width:
            raise InputError(f"{found} features per region, not {self.width}")
        if self.form in _NUMBERED and not (image_id.isascii() and image_id.isdigit()):
            raise InputError(
                f"image id {image_id!r} is not a number, which {self.target.name!r} needs; "
                "convert to another format"
            )
        if self.form == "milvlg" and "/" in image_id:
            raise InputError(
                f"image {image_id!r} is in a subfolder, which {self.target.name!r} cannot "
                "contain; convert to another format"
            )


def _require_new(target: Path) -> None:
    # an unsealed store is an interrupted conversion, which can be resumed
    if (target / MANIFEST).exists() or (target.exists() and not (target / DATA_FILE).exists()):
        raise InputError(f"{str(target)!r} already exists; name another path, or remove it")


def _write_file(
    path: Path,
    records: Iterable[Record],
    form: Format,
    features: tuple[FeatureType, int],
    *,
    prefix: str,
) -> None:
    """Write the records of a store into a file or folder; features: their type and F."""
    images = map(_decoded, records)
    if form == "tar":
        write_tar(path, records)
    elif form == "parquet":
        write_parquet(path, records, *features)
    elif form == "att-box":
        write_npz(path, images, att_box_files)
    elif form == "milvlg":
        write_npz(path, images, milvlg_files)
    elif form == "m2":
        write_m2(path, images, M2)
    elif form != "a2":
        write_tsv(path, images, layout=_TSV[form], prefix=prefix)


def _decoded(record: Record) -> ImageFeatures:
    return ImageFeatures(_id(record), decode_regions(bytes(record[1]), _id(record)))


def _id(record: Record) -> str:
    return bytes(record[0]).decode()


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
    for item in open_features(target, Reading(done.sizes)):
        if isinstance(item, ImageFeatures):
            found.add(item.image_id, item.regions)
    if found.hexdigest() != done.checksum.hexdigest():
        raise StoreError(
            f"{str(target)!r} differs from the source: {found.count} images of "
            f"{done.checksum.count}; remove it and convert again"
        )
