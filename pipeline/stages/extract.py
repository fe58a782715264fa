"""Stage extract: pictures to region features in an LMDB store."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2.data.annotations import Skipped
from a2.data.feature_store import FeatureStore
from a2.extract.config import ExtractConfig
from a2.pipeline.config import RuntimeConfig
from a2.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs

NAME = "extract"
CODE_VERSION = 1

FEATURES, EXTRACTOR, WEIGHTS = "features.lmdb", "extractor.json", "weights.safetensors"

NO_WEIGHTS = (
    "no detector weights are named: extract.weights is null; name a file with "
    "--set extract.weights=FILE (safetensors of this project, or faster_rcnn_from_caffe_attr.pkl "
    "of airsplay/py-bottom-up-attention), or, for a smoke run whose features mean nothing, "
    "--set extract.weights=calibrated-random"
)

_READ_FROM_WEIGHTS = {"weights", "depth", "width", "seed"}
"""Fields that say where weights come from: the digest of the weights stands in the key instead."""


def extract_stage(
    config: ExtractConfig,
    *,
    weights: Input,
    pictures: Mapping[str, Path | None],
    content: Input,
    boxes: Input | None,
    runtime: RuntimeConfig,
) -> Stage:
    """The stage over `pictures` (image id -> file, None where it is missing)."""
    inputs = {"pictures": content, "weights": weights}
    if boxes is not None:
        inputs["instances"] = boxes
    return Stage(
        name=NAME,
        code_version=CODE_VERSION,
        params={"extract": config.model_dump(mode="json", exclude=_READ_FROM_WEIGHTS)},
        inputs=inputs,
        outputs={
            FEATURES: lambda path: FeatureStore(path).digest,
            **plain_outputs(EXTRACTOR, WEIGHTS),
        },
        work=partial(
            _extract, config, weights.path, pictures, boxes.path if boxes else None, runtime
        ),
    )


def _extract(
    config: ExtractConfig,
    weights: Path,
    pictures: Mapping[str, Path | None],
    boxes: Path | None,
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[Skipped]:
    from a2.pipeline.extraction import extract_features

    return extract_features(
        config, weights, pictures, boxes, runtime, directory=directory, events=events
    )
