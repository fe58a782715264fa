"""Captions of images from feature stores, by one captioner or an ensemble."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from a2cap.data.batches.loader import image_batches
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.store import FeatureStore
from a2cap.data.image_ids import sample_ids
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.model_description import EXTRACTOR
from a2cap.pipeline.captioning.saved_captioner import load_captioner
from a2cap.pipeline.engine.artifact_names import FEATURES
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)


def locate_images(
    stores: Sequence[Path], ids: Sequence[str], *, what: str
) -> list[tuple[Path, list[str]]]:
    """Return each store with the images to read from it; raise StoreError for missing images.

    stores: stores, or result folders of `a2 extract`; what: name of the set, for the message.
    """
    left, taken = set(ids), []
    for path in stores:  # the first store that has an image wins
        inner = path / FEATURES if (path / FEATURES).is_dir() else path
        here = left.intersection(FeatureStore(inner))
        left -= here
        taken.append((inner, [identity for identity in ids if identity in here]))
    if left:
        missing = sorted(left)
        raise StoreError(
            f"no features for {len(missing):,} of {len(ids):,} images of {what}: "
            f'{sample_ids(missing)}; run "a2 extract" on them, and name its store too'
        )
    return [(store, here) for store, here in taken if here]


def check_extractors(stores: Sequence[Path], model: Path) -> None:
    """Raise InputError if a store comes from another extractor than the model's."""
    expected = ExtractorRecord.read(model / EXTRACTOR)
    for path in stores:
        folder = path if (path / FEATURES).is_dir() else path.parent
        if not (folder / EXTRACTOR).is_file():  # a store that was copied alone
            logger.warning("no %s beside %s: its extractor is not checked", EXTRACTOR, path)
            continue
        different = ExtractorRecord.read(folder / EXTRACTOR).differences(expected)
        if different:
            raise InputError(
                f"features of {str(path)!r} and {str(model)!r} come from different extractors "
                f"({EXTRACTOR} differs in {', '.join(different)}); "
                "extract with the model's weights and configuration"
            )


def caption_sets(
    models: Sequence[Path],
    stores: Sequence[Path],
    sets: Mapping[str, Sequence[str]],
    config: CaptioningConfig,
    runtime: RuntimeConfig,
) -> dict[str, dict[str, str]]:
    """Return the first non-empty caption of each image of each set, by set and image id."""
    # both fail before a model is loaded
    located = {name: locate_images(stores, ids, what=name) for name, ids in sets.items()}
    check_extractors(stores, models[0])
    device = prepare_device(runtime)
    loaded = load_captioner(models, device=device, average=config.ensemble_average)
    captions: dict[str, dict[str, str]] = {}
    for name, images in located.items():
        captions[name] = {}
        with track(f"caption {name}", total=len(sets[name])) as progress:
            for store, ids in images:
                batches = image_batches(
                    store,
                    ids,
                    batch_size=config.batch_size,
                    max_regions=loaded.description.max_regions,
                    workers=runtime.workers,
                )
                for identity, beams in loaded.decode(batches, config):
                    captions[name][identity] = best_nonempty(beams)
                    progress.advance(1)
    return captions


def best_nonempty(beams: Sequence[Beam]) -> str:
    """Return the first caption with words, "" if none has any."""
    return next((beam.caption for beam in beams if beam.caption.strip()), "")
