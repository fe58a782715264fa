"""The extraction engine: fixed shards of the images, filled in any order by any process.

The list of images alone decides the shards. One process fills them in order, `--shard i/N` a stripe
of them, and Ray those that are missing; each is published once, and the store is their list.
"""

from pathlib import Path

from a2cap.data.annotations.read import check_skip_limit
from a2cap.data.errors import InputError
from a2cap.data.features.store import seal_shards
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.pipeline.engine.artifact_names import EXTRACTOR, WEIGHTS
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.extraction.images import LISTING, ExtractionInputs
from a2cap.pipeline.extraction.ray_engine import fill_on_ray
from a2cap.pipeline.extraction.shard_folder import remove_working_folder
from a2cap.pipeline.extraction.shard_worker import Extraction, fill_here


def extract_images(
    given: ExtractionInputs, folder: Path, inputs: Inputs, events: EventLog
) -> list[SkippedItem]:
    """Fill a folder with the store, the weights and the record of the extractor.

    Continues the work of earlier runs, here or on a Ray cluster. Returns the skipped images; raises
    InputError if too many are bad.
    """
    extraction = Extraction.begin(given, folder, inputs)
    missing = {name: extraction.shards[name] for name in extraction.missing()}
    extractor = None
    if missing and given.runtime.ray is not None:
        fill_on_ray(extraction, missing, events)
    elif missing:
        extractor = fill_here(extraction, missing, events)
    skipped = extraction.skipped()
    check_skip_limit(skipped, extraction.total, "images")  # each process knows its own
    facts = seal_shards(extraction.store, len(extraction.shards))
    if not facts.count:
        first = skipped[0]
        raise InputError(
            f"none of the {extraction.total} images can be used, first {first.image_id!r}: "
            f"{first.reason}; fix or replace them"
        )
    _save_extractor(extractor or load_extractor(given.weights, config=given.config), folder)
    remove_working_folder(extraction.store)
    (folder / LISTING).unlink(missing_ok=True)
    return skipped


def extract_stripe(
    given: ExtractionInputs, stripe: Stripe, folder: Path, inputs: Inputs, events: EventLog
) -> int:
    """Fill the shards of a stripe; return how many of all shards are then missing."""
    extraction = Extraction.begin(given, folder, inputs)
    own = [name for name in stripe.of(list(extraction.shards)) if name in extraction.missing()]
    if own:
        fill_here(extraction, {name: extraction.shards[name] for name in own}, events)
    return len(extraction.missing())


def _save_extractor(extractor: AnyExtractor, folder: Path) -> None:
    """Write the weights and the record with which a captioner can extract the same regions."""
    extractor.save(folder / WEIGHTS)
    extractor.record(folder / WEIGHTS).write(folder / EXTRACTOR)
