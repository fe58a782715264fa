"""The work of stage extract with `data.features`: region features of another program."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import isclose
from operator import attrgetter
from pathlib import Path

from a2cap.data.annotations.read import check_skip_limit
from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_format import ImageFeatures, Reading
from a2cap.data.features.source_files import source_files
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import DATA_FILE, is_store
from a2cap.data.files.atomic import link_or_copy
from a2cap.data.files.sealed_folder import MANIFEST, SkippedItem, read_manifest
from a2cap.data.identities import NO_OWN_IDS, Identities
from a2cap.data.image_ids import find_images, sample_ids
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor_record import CODE_VERSION, ExtractorRecord
from a2cap.pipeline.engine.artifact_names import EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import EventLog

logger = logging.getLogger(__name__)

OWN_IDS = "own_ids"
"""Field of the key of features that were linked with ids of annotations."""

_TRIED = 20
"""Images of a file among which one has to be readable."""

_COMPARED = 1000
"""Images whose sizes are compared, spread over all: a file of other images shows soon."""

_SAME_SHAPE = 0.02
"""Largest relative difference of the ratios of width and height: sides are rounded."""


@dataclass(frozen=True)
class ImportedFeatures:
    """Region features to import.

    path: a store, the result of `a2 extract`, or what `a2 convert` reads; sizes: image folder or
    COCO file, for formats without image sizes; image_ids: the images that need features;
    identities: ids that the annotations give them.
    """

    path: Path
    sizes: Path | None
    image_ids: Collection[str]
    config: ExtractConfig
    identities: Identities = NO_OWN_IDS

    @property
    def source(self) -> Path:
        """The store or file: `path`, or the store inside a result of `a2 extract`."""
        inside = self.path / FEATURES
        return inside if inside.is_dir() else self.path

    @property
    def is_result(self) -> bool:
        """True for a store in a result of `a2 extract`."""
        return is_store(self.source) and (self.source.parent / MANIFEST).is_file()

    @property
    def names_files(self) -> bool:
        """True for a store whose ids are those of files: extracted from them, or linked."""
        beside = self.source.parent
        return self.is_result and (
            (beside / WEIGHTS).is_file() or OWN_IDS in read_manifest(beside).origin.fields
        )

    def names(self) -> "_Names | None":
        """Return how names of images are read, None if each is that of a file."""
        is_read = bool(self.identities) or self.identities.rule == "path"
        return _Names(self) if is_read and not self.names_files else None

    def files(self) -> dict[str, Path]:
        """Return the files that determine the result, by name."""
        source = self.source
        if is_store(source):  # its manifest contains the digest of the features
            beside = source.parent / EXTRACTOR
            return {file.name: file for file in (source / MANIFEST, beside) if file.is_file()}
        # relative, because another name or place of the same content is no reason to run again
        return source_files(source)

    def size_files(self) -> dict[str, Path]:
        """Return the files that state the sizes of images, by name."""
        if self.sizes is None:
            return {}
        return (
            find_images(self.sizes, self.identities.rule)
            if self.sizes.is_dir()
            else {"sizes": self.sizes}
        )

    def feature_width(self) -> int:
        """Return F of the first readable image; InputError if there is none."""
        if is_store(self.source):
            return FeatureStore(self.source).feature_width
        from a2cap.pipeline.extraction.open_features import open_features, read_sizes

        reason = "it is empty"
        opened = open_features(
            self.source, Reading(read_sizes(self.sizes, self.identities.rule), ids=self.names())
        )
        for item in islice(opened, _TRIED):
            if isinstance(item, ImageFeatures):
                return int(item.regions.features.shape[1])
            reason = f"{item.image_id!r}: {item.reason}"
        raise InputError(f"no readable features in {str(self.path)!r} (data.features): {reason}")


class _Names:
    """The names of images in a file of features, as ids of the files of the annotated images."""

    def __init__(self, imported: ImportedFeatures) -> None:
        self.reader = imported.identities.reader(f"the features of {str(imported.path)!r}")

    def __call__(self, name: str) -> str:
        # "id 5" is no file's id: a number that the annotations lack may be that of another file
        return self.reader(name) or f"id {name}"

    def keep(self, store: Path) -> bool:
        """Return True if the keys of a store are those of the files."""
        return all(self(key) == key for key in FeatureStore(store))


def import_features(
    imported: ImportedFeatures,
    directory: Path,
    inputs: Inputs,
    events: EventLog,
    images: Mapping[str, Path | None],
) -> Sequence[SkippedItem]:
    """Fill `directory` with the store and the record of where it came from.

    images: files with which the sizes that the features state are compared. Continues an
    interrupted run. Returns the skipped images; raises InputError for other images without
    features, and for features of other images.
    """
    target, source = directory / FEATURES, imported.source
    (target / MANIFEST).unlink(missing_ok=True)  # the last run died before the stage's manifest
    names = imported.names()
    if is_store(source) and (names is None or names.keep(source)):
        _link_files(source, target)
        found = read_manifest(source.parent if imported.is_result else source).reasons
    else:
        from a2cap.pipeline.extraction.convert import convert, skipped_file

        dtype = FeatureStore(source).facts.dtype if is_store(source) else imported.config.dtype
        made = convert(
            source,
            target,
            form="a2",
            dtype=dtype,
            sizes=imported.sizes,
            ids=names,
            rule=imported.identities.rule,
        )
        skipped_file(target).unlink(missing_ok=True)
        found = {item.image_id: item.reason for item in made.skipped}
    if names is not None and names.reader.summary:
        logger.info("%s", names.reader.summary)
    store = FeatureStore(target)
    wanted, stored = set(imported.image_ids), set(store)
    unused = len(stored - wanted) if wanted else 0
    events.write("imported", images=len(stored), without_captions=unused)
    if unused:
        logger.info("%d images of %s have no captions and are not used", unused, imported.path)
    missing = sorted(wanted - stored - found.keys())
    if missing:
        raise InputError(
            f"no features for {len(missing):,} of {len(wanted):,} images in "
            f"{str(imported.path)!r}: {sample_ids(missing)}; add them, or remove these images "
            "from data.annotations"
        )
    imported_ids = (wanted or stored) & stored
    misfits = _misfits(store, imported_ids, images)
    compared = min(len(imported_ids), _COMPARED)
    check_skip_limit(misfits, compared, "compared images of data.features")
    _write_record(imported, store, directory)
    skipped = [SkippedItem(name, found[name]) for name in found.keys() - stored]
    return sorted([*skipped, *misfits], key=attrgetter("image_id"))


def _misfits(
    store: FeatureStore, image_ids: Collection[str], images: Mapping[str, Path | None]
) -> list[SkippedItem]:
    """Return images whose features are of an image of another shape, of up to 1,000.

    Features of resized images fit: all that reads boxes divides them by the size.
    """
    from a2cap.data.files.image_file import image_size  # imports Pillow

    files = {name: file for name in sorted(image_ids) if (file := images.get(name)) is not None}
    misfits = []
    for name in list(files)[:: -(-len(files) // _COMPARED) or 1]:
        with suppress(InputError):  # of a file that cannot be read, which the report leaves out
            regions, (width, height) = store[name], image_size(files[name])
            if not isclose(regions.width * height, regions.height * width, rel_tol=_SAME_SHAPE):
                reason = (
                    f"features are of an image of {regions.width} x {regions.height} pixels, "
                    f"{files[name].name!r} has {width} x {height}; check the ids of data.features"
                )
                misfits.append(SkippedItem(name, reason))
    return misfits


def _link_files(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.name in (DATA_FILE, MANIFEST):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, copy)


def _write_record(imported: ImportedFeatures, store: FeatureStore, directory: Path) -> None:
    beside = imported.source.parent
    if (beside / EXTRACTOR).is_file() and (beside / WEIGHTS).is_file():
        for name in (EXTRACTOR, WEIGHTS):  # with these, `a2 caption` extracts the same features
            link_or_copy(beside / name, directory / name)
        return
    record = ExtractorRecord(
        summary="imported region features",
        feature_width=store.feature_width,
        weights_sha256="",
        config=imported.config.model_copy(update={"weights": None}),
        code_version=CODE_VERSION,
        libraries={},
        source=imported.path.name,
    )
    record.write(directory / EXTRACTOR)
