"""Stage extract: images to region features in an LMDB store."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.features.shard import Shard, shards_in
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.sealed_folder import SkippedItem, seal
from a2cap.extract.record import CODE_VERSION as RECORDED_VERSION
from a2cap.pipeline.engine.artifacts import EXTRACT, EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage, ShardWork
from a2cap.pipeline.extraction.imported import ImportedFeatures, import_features
from a2cap.pipeline.extraction.inputs import ExtractionInputs

CODE_VERSION = 5 + RECORDED_VERSION
IMPORT_VERSION = 1

# The key contains the digest of the weights instead of the path.
_WEIGHTS_FIELDS = {"weights"}


def extract_stage(
    extraction: ExtractionInputs, *, weights: Input, images: Input, boxes: Input | None
) -> PreparedStage:
    """Build the stage; `weights`, `images` and `boxes` carry the digests of the inputs."""
    inputs = {"images": images, "weights": weights}
    if boxes is not None:
        inputs["instances"] = boxes
    return PreparedStage(
        name=EXTRACT,
        version=CODE_VERSION,
        fields={
            "extract": {
                **key_fields(extraction.config, exclude=_WEIGHTS_FIELDS),
                "precision": extraction.config.precision_in_key,
            }
        },
        inputs=inputs,
        outputs=(FEATURES, EXTRACTOR, WEIGHTS),
        work=partial(_extract, extraction),
        shards=ShardWork(FEATURES, partial(_extract_shard, extraction)),
    )


def import_stage(imported: ImportedFeatures, *, inputs: Mapping[str, Input]) -> PreparedStage:
    """Build the stage that imports features instead; `inputs` carry the digests of its files."""
    return PreparedStage(
        name=EXTRACT,
        version=IMPORT_VERSION,
        fields={"features": {"dtype": imported.config.dtype}},
        inputs=inputs,
        outputs=(FEATURES, EXTRACTOR),
        work=partial(_import, imported),
    )


def _import(
    imported: ImportedFeatures, directory: Path, inputs: Inputs, events: EventLog
) -> Sequence[SkippedItem]:
    skipped = import_features(imported, directory, events)
    _seal_store(directory / FEATURES)
    return skipped


def _seal_store(store: Path) -> None:
    files = [path.relative_to(store).as_posix() for path in sorted(store.rglob("*"))]
    seal(
        store,
        [name for name in files if (store / name).is_file() and not name.endswith("lock.mdb")],
        facts={"digest": FeatureStore(store).digest},
    )


def _extract(
    extraction: ExtractionInputs, directory: Path, inputs: Inputs, events: EventLog
) -> Sequence[SkippedItem]:
    """Join the shards in the partial directory if there are any, else extract all images."""
    from a2cap.pipeline.extraction.extract import extract_features
    from a2cap.pipeline.extraction.shards import join_shards

    work = join_shards if shards_in(directory / FEATURES) else extract_features
    skipped = work(extraction, directory=directory, events=events)
    _seal_store(directory / FEATURES)
    return skipped


def _extract_shard(
    extraction: ExtractionInputs, shard: Shard, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.extraction.shards import extract_shard

    return extract_shard(extraction, shard, directory=directory, events=events)
