"""Stage extract: images to region features in a store of shards."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.record import CODE_VERSION as RECORDED_VERSION
from a2cap.pipeline.engine.artifacts import EXTRACT, EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.engine.stripe import Stripe
from a2cap.pipeline.extraction.imported import ImportedFeatures, import_features
from a2cap.pipeline.extraction.inputs import ExtractionInputs

CODE_VERSION = 6 + RECORDED_VERSION
IMPORT_VERSION = 2


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
        # the digest of the weights in place of their name
        fields={"extract": key_fields(extraction.config, exclude={"weights"})},
        inputs=inputs,
        outputs=(FEATURES, EXTRACTOR, WEIGHTS),
        work=partial(_extract, extraction),
        share=partial(_extract_stripe, extraction),
    )


def import_stage(imported: ImportedFeatures, *, inputs: Mapping[str, Input]) -> PreparedStage:
    """Build the stage that imports features instead; `inputs` carry the digests of its files."""
    return PreparedStage(
        name=EXTRACT,
        version=IMPORT_VERSION,
        fields={"features": {"dtype": imported.config.dtype}},
        inputs=inputs,
        outputs=(FEATURES, EXTRACTOR),
        work=partial(import_features, imported),
    )


def _extract(
    extraction: ExtractionInputs, folder: Path, inputs: Inputs, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.extraction.engine import Fill, extract_images, fill_here  # imports torch
    from a2cap.pipeline.extraction.ray_engine import fill_on_ray

    fill: Fill = fill_here if extraction.runtime.ray is None else fill_on_ray
    return extract_images(extraction, folder, inputs, events, fill=fill)


def _extract_stripe(
    extraction: ExtractionInputs, stripe: Stripe, folder: Path, inputs: Inputs, events: EventLog
) -> int:
    from a2cap.pipeline.extraction.engine import extract_stripe

    return extract_stripe(extraction, stripe, folder, inputs, events)
