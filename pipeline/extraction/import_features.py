"""The work of stage extract with `data.features`: a store of region features of another program."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import isclose
from operator import attrgetter
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.features.formats.feature_source import ReadHints
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.store_manifest import DATA_FILE, is_store
from a2cap.data.files.atomic import link_or_copy
from a2cap.data.files.image_file import image_size
from a2cap.data.files.sealed_folder import MANIFEST, SkippedItem, check_skip_limit, read_manifest
from a2cap.data.image_ids import sample_ids
from a2cap.extract.extractor_record import CODE_VERSION, ExtractorRecord
from a2cap.pipeline.engine.artifact_names import EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.extraction.convert import convert, skipped_file
from a2cap.pipeline.extraction.imported import ImportedFeatures

logger = logging.getLogger(__name__)

_COMPARED = 1000
"""Images whose sizes are compared, spread over all: a file of other images shows soon."""

_SAME_SHAPE = 0.02
"""Largest relative difference of the ratios of width and height: sides are rounded."""


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
    if is_store(source) and (
        names is None or all(names.linked(key) == key for key in FeatureStore(source))
    ):
        _link_files(source, target)
        reasons = read_manifest(source.parent if imported.is_result else source).reasons
    else:
        dtype = FeatureStore(source).facts.dtype if is_store(source) else imported.config.dtype
        hints, rule = ReadHints(ids=names.linked if names else None), imported.identities.rule
        made = convert(
            source, target, form="a2", dtype=dtype, sizes=imported.sizes, hints=hints, rule=rule
        )
        skipped_file(target).unlink(missing_ok=True)
        reasons = {item.image_id: item.reason for item in made.skipped}
    if names and names.summary:
        logger.info("%s", names.summary)
    store = FeatureStore(target)
    needed, stored = set(imported.image_ids), set(store)
    unused = len(stored - needed) if needed else 0
    events.write("imported", images=len(stored), without_captions=unused)
    if unused:
        logger.info("%d images of %s have no captions and are not used", unused, imported.path)
    missing = sorted(needed - stored - reasons.keys())
    if missing:
        raise InputError(
            f"no features for {len(missing):,} of {len(needed):,} images in "
            f"{str(imported.path)!r}: {sample_ids(missing)}; add them, or remove these images "
            "from data.annotations"
        )
    imported_ids = (needed or stored) & stored
    misfits = _misfits(store, imported_ids, images)
    compared = min(len(imported_ids), _COMPARED)
    check_skip_limit(misfits, compared, "compared images of data.features")
    _write_record(imported, store, directory)
    skipped = [SkippedItem(name, reasons[name]) for name in reasons.keys() - stored]
    return sorted([*skipped, *misfits], key=attrgetter("image_id"))


def _misfits(
    store: FeatureStore, image_ids: Collection[str], images: Mapping[str, Path | None]
) -> list[SkippedItem]:
    """Return images whose features are of an image of another shape, of up to 1,000.

    Features of resized images fit: all that reads boxes divides them by the size.
    """
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
