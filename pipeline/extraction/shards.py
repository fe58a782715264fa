"""Extraction in shards: each process fills its part of the store, the last one joins them."""

from collections.abc import Sequence
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.features.join import seal_shards
from a2cap.data.features.seal import SEAL_FILE
from a2cap.data.features.shard import Shard, complete_shards
from a2cap.data.features.store import FeatureStore
from a2cap.extract.extractor import load_extractor
from a2cap.pipeline.engine.artifacts import EXTRACTOR, FEATURES
from a2cap.pipeline.engine.run import write_skipped
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.extract import (
    Extraction,
    recorded_config,
    require_some,
    save_extractor,
    skipped_in,
)
from a2cap.pipeline.extraction.inputs import ExtractionInputs


def extract_shard(
    inputs: ExtractionInputs, shard: Shard, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Fill and seal the folder of a shard in the store of `directory`; return its skipped images.

    Continues an interrupted run.
    """
    folder = directory / FEATURES / shard.folder
    if (folder / SEAL_FILE).exists():
        return skipped_in(folder)
    extraction = Extraction.load(inputs, events, directory, shard)
    if inputs.config.precision_in_key == "auto" and not (directory / EXTRACTOR).exists():
        save_extractor(extraction.extractor, directory)  # its choice is that of all shards
    with extraction.open_store(folder) as writer:
        skipped = extraction.fill(writer)
        write_skipped(folder, skipped)  # before the seal: a sealed shard is complete
        writer.seal()
    return skipped


def join_shards(
    inputs: ExtractionInputs, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Seal the shards of `directory` as one store and write the record of the extractor.

    Returns the skipped images of all shards. Raises InputError if too many are bad, and StoreError,
    naming them, if shards or images are missing or shards overlap.
    """
    store = directory / FEATURES
    seal = seal_shards(store)
    skipped = []
    for shard in complete_shards(store):
        of_shard = skipped_in(store / shard.folder)
        events.write("shard", shard=str(shard), skipped=len(of_shard))
        skipped += of_shard
    # each shard was below the limit by itself
    check_skip_limit(skipped, len(inputs.images), "images")
    require_some(seal.count, skipped, total=len(inputs.images))
    # shards of another set of images may have been copied here
    FeatureStore(store).require(inputs.images.keys() - {item.image_id for item in skipped})
    config = recorded_config(inputs, directory)
    save_extractor(load_extractor(inputs.weights, config=config), directory)
    return skipped
