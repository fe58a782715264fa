"""Conversion of region features between formats, verified by reading the result back."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.feature_record import FeatureType, decode_regions
from a2cap.data.features.formats.feature_source import FeatureSource, ImageFeatures, ReadHints
from a2cap.data.features.formats.writers import WRITERS, Format
from a2cap.data.features.relation_file import RelationFile
from a2cap.data.features.source_files import source_files
from a2cap.data.features.store_manifest import DATA_FILE, joint_digest
from a2cap.data.features.writer import FeatureWriter, StoreWriteError
from a2cap.data.files.atomic import replacing, write_durably
from a2cap.data.files.sealed_folder import MANIFEST, SkippedItem, check_skip_limit
from a2cap.data.image_ids import IdRule
from a2cap.data.regions import Regions
from a2cap.data.sources.parquet import load_pyarrow
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.open_features import hints_with_sizes, open_features


@dataclass(frozen=True)
class Conversion:
    """The summary of a finished conversion."""

    count: int
    regions: tuple[int, int]  # fewest and most per image
    width: int  # features per region
    checksum: str  # of the content, equal in every format
    skipped: list[SkippedItem]
    relations: int = 0  # of all images
    ran: bool = True  # False if an earlier run had finished


def convert(
    source: Path,
    target: Path,
    *,
    form: Format,
    dtype: FeatureType = "float16",
    sizes: Path | None = None,
    prefix: str = "",
    hints: ReadHints | None = None,
    rule: IdRule = "number",
    relations: Path | None = None,
) -> Conversion:
    """Convert `source`, whose format is detected, to `target`; continue or find an earlier run.

    sizes: folder of the images or a COCO file, for formats without image sizes.
    prefix: of LXMERT's names.
    hints: what the source does not state.
    rule: of the ids of files with sizes.
    relations: a file of relations of these regions, without which an image is skipped.
    Raises InputError for relations of other regions, if the target exists, the format of the source
    is unknown, too many of its images are unusable or most are of another convention, and
    StoreError if the result differs from the source.
    """
    arguments = {"form": form, "dtype": dtype, "sizes": str(sizes), "prefix": prefix}
    hints = hints or ReadHints()
    arguments |= {"order": hints.order, "number_type": hints.number_type}
    record = {"arguments": arguments, "source": _state_of(source)}
    if relations is not None:
        record["relations"] = _state_of(relations)
    if earlier := _earlier_run(target, record):
        return earlier
    # an unsealed store is an interrupted conversion, which can be resumed
    if (target / MANIFEST).exists() or (target.exists() and not (target / DATA_FILE).exists()):
        raise InputError(f"{str(target)!r} already exists; name another path, or remove it")
    if form == "parquet":
        load_pyarrow(target.name)
    opened = open_features(source, hints_with_sizes(sizes, source, hints, rule))
    has_half = form == "a2" or WRITERS[form].has_half
    if relations is not None and not has_half:
        raise InputError(
            f"{form} cannot contain relations; convert to a2, tar or parquet, or leave out "
            "--relations"
        )
    added = None if relations is None else RelationFile.read(relations)
    images = _ConvertedImages(target, form, dtype if has_half else "float32", added)
    images.write(opened, source, prefix)
    made = images.conversion()
    record |= {"result": asdict(made), "target": _state_of(target)}
    write_durably(_record_file(target), json.dumps(record).encode())
    return made


def _earlier_run(target: Path, record: Mapping[str, object]) -> Conversion | None:
    """Return the result of an equal conversion if neither source nor target changed since."""
    try:
        earlier = json.loads(_record_file(target).read_text())
        if earlier != {**record, "target": _state_of(target), "result": earlier["result"]}:
            return None
        result = earlier["result"] | {"ran": False, "regions": tuple(earlier["result"]["regions"])}
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


def content_digest(image_id: str, regions: Regions) -> str:
    """Return the sha256 of id, boxes, features and relations, equal in any format of a2."""
    digest = hashlib.sha256(image_id.encode())
    relations = () if regions.relations is None else (regions.relations,)
    for array in (regions.boxes, regions.features, *relations):
        digest.update(np.ascontiguousarray(array, "<f4").tobytes())
    return digest.hexdigest()


@dataclass
class _ConvertedImages:
    """The images that are read, written and compared."""

    target: Path
    form: Format
    dtype: FeatureType
    added: RelationFile | None = None
    skipped: list[SkippedItem] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    width: int = 0
    relations: int = 0

    def write(self, opened: FeatureSource, source: Path, prefix: str) -> None:
        """Write images into a store, which resumes, and from that into another format."""
        is_store = self.form == "a2"
        store = self.target if is_store else self.target.with_name(f"{self.target.name}.partial")
        store.parent.mkdir(parents=True, exist_ok=True)
        with FeatureWriter(store, dtype=self.dtype) as writer:
            self._read(opened, writer)
            if not self.counts:
                raise nothing_readable(source, self.skipped)
            if is_store:
                writer.seal()
            else:
                writer.flush()
                with replacing(self.target) as temporary:
                    WRITERS[self.form].write(temporary, self._stored(writer, prefix))
        if not is_store:
            shutil.rmtree(store)
        self._list_skipped()

    def _read(self, opened: FeatureSource, writer: FeatureWriter) -> None:
        total = len(opened)  # of a TSV, this reads the whole file
        with track("convert", total=total) as progress:
            for item in opened:
                if isinstance(item, SkippedItem):
                    self.skipped.append(item)
                else:
                    self._add(item, writer)
                check_skip_limit(self.skipped, total, "images")
                progress.advance(1)

    def _add(self, item: ImageFeatures, writer: FeatureWriter) -> None:
        """Add an image to the store, or skip it."""
        image_id, regions = item.image_id, item.regions
        width = regions.features.shape[1]
        self.width = self.width or width
        if self.added is not None and image_id in self.added.images:
            regions = self.added.add(image_id, regions)  # or end: they are of other regions
        try:
            if image_id in self.sizes:
                raise InputError(f"duplicate of image {image_id!r}; keep one")
            if width != self.width:
                raise InputError(f"{width} features per region, not {self.width}")
            if self.form != "a2":
                WRITERS[self.form].check_id(image_id, self.target)
            if self.added is not None and image_id not in self.added.images:
                raise InputError(f"no relations of the image in {str(self.added.path)!r}")
            if image_id not in writer:  # else from an interrupted run
                writer.add(image_id, regions)
        except StoreWriteError:
            raise
        except (InputError, StoreError) as error:
            self.skipped.append(SkippedItem(image_id, str(error)))
            return
        # the checksum is that of the rounded features, as float16 loses precision as intended
        is_own = self.form == "a2" or WRITERS[self.form].has_half
        kept = regions.relations if is_own else None  # formats of others have none
        rounded = replace(regions, features=regions.features.astype(self.dtype), relations=kept)
        self.relations += 0 if kept is None else len(kept)
        self.digests.append(content_digest(image_id, rounded))
        self.counts.append(len(regions))
        self.sizes[image_id] = regions.width, regions.height

    def _stored(self, writer: FeatureWriter, prefix: str) -> Iterator[ImageFeatures]:
        """Yield the images of the store, not what a stopped conversion of another source left."""
        for key, value in writer.records():
            image_id = bytes(key).decode()
            if image_id in self.sizes:
                name = f"{prefix}{image_id}" if self.form == "lxmert" else image_id
                yield ImageFeatures(name, decode_regions(bytes(value), image_id))

    def _list_skipped(self) -> None:
        """Write the list of skipped records, which states if another one of the image was read."""
        for number, item in enumerate(self.skipped):
            if item.image_id in self.sizes and not item.reason.startswith("duplicate "):
                reason = f"{item.reason}; another record of the image was read"
                self.skipped[number] = SkippedItem(item.image_id, reason)
        if self.skipped:
            lines = ({"id": item.image_id, "reason": item.reason} for item in self.skipped)
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            write_durably(skipped_file(self.target), text.encode())

    def conversion(self) -> Conversion:
        """Return the summary; raise StoreError if the result that is read back differs."""
        results = open_features(self.target, ReadHints(self.sizes.get))
        digests = [
            content_digest(item.image_id, item.regions)
            for item in results
            if isinstance(item, ImageFeatures)
        ]
        checksum, count = joint_digest(self.digests), len(self.digests)
        if joint_digest(digests) != checksum:
            raise StoreError(
                f"{str(self.target)!r} differs from the source: {len(digests)} images of {count}; "
                "remove it and convert again"
            )
        regions = min(self.counts), max(self.counts)
        return Conversion(
            count, regions, self.width, checksum, self.skipped, relations=self.relations
        )


def skipped_file(target: Path) -> Path:
    """Return the list of skipped images, which is beside the target because that may be a file."""
    return target.with_name(f"{target.name}.skipped.jsonl")


def nothing_readable(source: Path, skipped: Sequence[SkippedItem]) -> InputError:
    """Return the error of a source without an image that can be read."""
    first = "".join(f", first {item.image_id!r}: {item.reason}" for item in skipped[:1])
    return InputError(f"no image of {str(source)!r} can be read{first}")
