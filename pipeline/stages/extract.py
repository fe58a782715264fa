"""Stage extract: images to region features in an LMDB store."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.features.shard import Shard, shards_in
from a2cap.data.features.store import FeatureStore
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.engine.artifacts import EXTRACT, EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.stage import EventLog, Input, ShardWork, Stage, plain_outputs
from a2cap.pipeline.runtime.config import RuntimeConfig

CODE_VERSION = 5


_READ_FROM_WEIGHTS = {"weights", "depth", "width", "seed"}
"""Fields that say where weights come from: the digest of the weights stands in the key instead."""


def extract_stage(
    config: ExtractConfig,
    *,
    weights: Input,
    images: Mapping[str, Path | None],
    content: Input,
    boxes: Input | None,
    runtime: RuntimeConfig,
) -> Stage:
    """The stage over `images` (image id -> file, None where it is missing).

    Where its partial directory holds shards, its work is to join them.
    """
    inputs = {"pictures": content, "weights": weights}
    boxes_path = boxes.path if boxes else None
    if boxes is not None:
        inputs["instances"] = boxes
    return Stage(
        name=EXTRACT,
        code_version=CODE_VERSION,
        params={"extract": config.model_dump(mode="json", exclude=_READ_FROM_WEIGHTS)},
        inputs=inputs,
        outputs={
            FEATURES: lambda path: FeatureStore(path).digest,
            **plain_outputs(EXTRACTOR, WEIGHTS),
        },
        work=partial(_extract, config, weights.path, images, boxes_path, runtime),
        shards=ShardWork(
            FEATURES, partial(_fill_shard, config, weights.path, images, boxes_path, runtime)
        ),
    )


def _extract(
    config: ExtractConfig,
    weights: Path,
    images: Mapping[str, Path | None],
    boxes: Path | None,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.extraction.extract import extract_features
    from a2cap.pipeline.extraction.shards import join_shards

    if shards_in(directory / FEATURES):
        return join_shards(config, weights, images, directory=directory, events=events)
    return extract_features(
        config, weights, images, boxes, runtime, directory=directory, events=events
    )


def _fill_shard(
    config: ExtractConfig,
    weights: Path,
    images: Mapping[str, Path | None],
    boxes: Path | None,
    runtime: RuntimeConfig,
    shard: Shard,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.extraction.shards import extract_shard

    return extract_shard(
        config, weights, images, boxes, runtime, shard, directory=directory, events=events
    )
