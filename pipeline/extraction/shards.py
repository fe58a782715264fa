"""Extraction in shards: each process fills its own part of the store, the last joins them."""

from collections.abc import Sequence
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.features.join import seal_shards
from a2cap.data.features.seal import SEAL_FILE
from a2cap.data.features.shard import Shard, complete_shards
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.extract.extractor import load_extractor
from a2cap.pipeline.engine.artifacts import FEATURES
from a2cap.pipeline.engine.run import read_skipped, write_skipped
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.extract import (
    commits_in,
    describe_extractor,
    describe_images,
    given_boxes,
    require_some,
)
from a2cap.pipeline.extraction.inputs import ExtractionInputs
from a2cap.pipeline.runtime.device import prepare_device


def extract_shard(
    inputs: ExtractionInputs, shard: Shard, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Fills and seals the shard's folder of the store in `directory`; resumes by key scan.

    Returns the shard's images that were left out, which are listed in its folder too.
    """
    folder = directory / FEATURES / shard.folder
    if (folder / SEAL_FILE).exists():
        return _skipped(folder)
    images = inputs.images
    given = given_boxes(inputs.boxes, images)
    device = str(prepare_device(inputs.runtime))
    extractor = load_extractor(inputs.weights, config=inputs.config, device=device)
    with FeatureWriter(folder, dtype=inputs.config.dtype, on_commit=commits_in(events)) as writer:
        skipped = describe_images(
            extractor, images, given, writer, directory=directory, events=events, shard=shard
        )
        write_skipped(folder, skipped)
        writer.seal()
    return skipped


def join_shards(
    inputs: ExtractionInputs, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Seals the shards of `directory` as one store and describes the extractor beside it.

    Returns the images that were left out of any shard. InputError above the limit of bad ones;
    StoreError, naming them, where shards or images are missing, or shards overlap.
    """
    store, images = directory / FEATURES, inputs.images
    seal = seal_shards(store)
    skipped = []
    for shard in complete_shards(store):
        of_shard = _skipped(store / shard.folder)
        events.write("shard", shard=str(shard), skipped=len(of_shard))
        skipped += of_shard
    check_skip_limit(skipped, len(images), "images")
    require_some(seal.count, skipped, total=len(images))
    FeatureStore(store).require(images.keys() - {item.image_id for item in skipped})
    describe_extractor(load_extractor(inputs.weights, config=inputs.config), directory)
    return skipped


def _skipped(folder: Path) -> list[SkippedItem]:
    return [SkippedItem(image_id, reason) for image_id, reason in read_skipped(folder).items()]
