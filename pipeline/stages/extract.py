"""Stage extract: images to region features in an LMDB store."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.features.shard import Shard, shards_in
from a2cap.data.features.store import FeatureStore
from a2cap.extract.record import CODE_VERSION as RECORDED_VERSION
from a2cap.pipeline.engine.artifacts import EXTRACT, EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, ShardWork, Stage, plain_outputs
from a2cap.pipeline.extraction.imported import ImportedFeatures, import_features
from a2cap.pipeline.extraction.inputs import ExtractionInputs

CODE_VERSION = 5 + RECORDED_VERSION
IMPORT_VERSION = 1

# The key contains the digest of the weights instead of the path.
_WEIGHTS_FIELDS = {"weights"}


def extract_stage(
    extraction: ExtractionInputs, *, weights: Input, images: Input, boxes: Input | None
) -> Stage:
    """Build the stage; `weights`, `images` and `boxes` carry the digests of the inputs."""
    # "pictures" is the earlier name of "images"; keys keep it, so that results stay valid
    inputs = {"pictures": images, "weights": weights}
    if boxes is not None:
        inputs["instances"] = boxes
    return Stage(
        name=EXTRACT,
        code_version=CODE_VERSION,
        params={
            "extract": {
                **key_fields(extraction.config, exclude=_WEIGHTS_FIELDS),
                "precision": extraction.config.precision_in_key,
            }
        },
        inputs=inputs,
        outputs={
            FEATURES: lambda path: FeatureStore(path).digest,
            **plain_outputs(EXTRACTOR, WEIGHTS),
        },
        work=partial(_extract, extraction),
        shards=ShardWork(FEATURES, partial(_extract_shard, extraction)),
    )


def import_stage(imported: ImportedFeatures, *, inputs: Mapping[str, Input]) -> Stage:
    """Build the stage that imports features instead; `inputs` carry the digests of its files."""
    return Stage(
        name=EXTRACT,
        code_version=IMPORT_VERSION,
        params={"features": {"dtype": imported.config.dtype}},
        inputs=inputs,
        outputs={FEATURES: lambda path: FeatureStore(path).digest, **plain_outputs(EXTRACTOR)},
        work=partial(import_features, imported),
    )


def _extract(
    extraction: ExtractionInputs, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Join the shards in the partial directory if there are any, else extract all images."""
    from a2cap.pipeline.extraction.extract import extract_features
    from a2cap.pipeline.extraction.shards import join_shards

    work = join_shards if shards_in(directory / FEATURES) else extract_features
    return work(extraction, directory=directory, events=events)


def _extract_shard(
    extraction: ExtractionInputs, shard: Shard, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.extraction.shards import extract_shard

    return extract_shard(extraction, shard, directory=directory, events=events)
