"""Captions of any image: extraction and decoding in one process, from a trained directory."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.regions import Regions, top_scoring
from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.captioning.config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam, caption_batches
from a2cap.pipeline.captioning.ensemble import LoadedCaptioner, load_captioner
from a2cap.pipeline.captioning.given_boxes import GivenBoxes
from a2cap.pipeline.captioning.named_image import NamedImage
from a2cap.pipeline.captioning.saved_captioner import EXTRACTOR, EXTRACTOR_WEIGHTS
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device

if TYPE_CHECKING:
    from a2cap.data.captions.attention_file import CaptionAttention

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captioned:
    """What was said of an image, best first, and the R regions that the captioner was given.

    attention: to the regions, at each word of the best caption; None unless it was asked for, and
    where the captioner has none.
    """

    beams: list[Beam]
    regions: Regions
    attention: "CaptionAttention | None" = None


def caption_files(
    images: Iterable[NamedImage],
    *,
    models: Sequence[Path],
    boxes: Path | None,
    decoding: CaptioningConfig,
    runtime: RuntimeConfig,
    batch_size: int = 16,
    attention: bool = False,
) -> Iterator[tuple[NamedImage, Captioned | A2Error]]:
    """Yields each image with what was said of it, or with the error that skipped it.

    Up to batch_size images are decoded together; the first is decoded alone, then 2, 4, … are,
    so that captions come soon. Raises A2Error before any work where the model cannot be used, and
    ConfigError where it was trained on given boxes and none are named.
    """
    where = prepare_device(runtime)
    loaded = load_captioner(models, device=where, average=decoding.ensemble_average)
    model = models[0]  # all have the same extractor
    config = extract_config(model)
    given = _given_boxes(config, boxes, model)
    extractor = load_extractor(model / EXTRACTOR_WEIGHTS, config=config, device=str(where))
    decoder = _Decoder(loaded, decoding, where)
    for together in _growing(images, batch_size):
        found = [
            _regions(image, extractor, given, loaded.description.max_regions) for image in together
        ]
        captioned = decoder([regions for regions in found if isinstance(regions, Regions)])
        for image, regions in zip(together, found, strict=True):
            if isinstance(regions, A2Error):
                yield image, regions
                continue
            one = next(captioned)
            yield image, decoder.with_attention(one) if attention else one


def extract_config(model: Path) -> ExtractConfig:
    """Return the configuration of the extractor that the captioner was trained with."""
    return ExtractorRecord.read(model / EXTRACTOR).config


@dataclass(frozen=True)
class _Decoder:
    """A loaded captioner, and how it is asked."""

    loaded: LoadedCaptioner
    config: CaptioningConfig
    device: torch.device

    def __call__(self, images: Sequence[Regions]) -> Iterator[Captioned]:
        """What is said of each image, in their order, decoded together."""
        if not images:
            return
        decoded = caption_batches(
            self.loaded.captioner,
            [_batch(images)],
            self.loaded.vocabulary,
            self.config,
            device=self.device,
        )
        for regions, (_, beams) in zip(images, decoded, strict=True):
            yield Captioned(beams, regions)

    def with_attention(self, captioned: Captioned) -> Captioned:
        """The same, with the attention at each word of the best caption."""
        from a2cap.pipeline.captioning.attention import attention_of_captions  # loads h5py

        paid = attention_of_captions(
            self.loaded.captioner,
            [_batch([captioned.regions])],
            {"0": captioned.beams[0].caption},
            self.loaded.vocabulary,
            device=self.device,
        )
        return replace(captioned, attention=next((found for _, found in paid), None))


def _growing(images: Iterable[NamedImage], batch_size: int) -> Iterator[list[NamedImage]]:
    """Groups of 1, 2, 4, … up to batch_size images."""
    rest, count = iter(images), 1
    while together := list(islice(rest, count)):
        yield together
        count = min(2 * count, batch_size)


def _regions(
    image: NamedImage,
    extractor: AnyExtractor,
    given: GivenBoxes | None,
    max_regions: int | None,
) -> Regions | A2Error:
    """The regions that the captioner is given, or why there are none."""
    try:
        boxes = None if given is None else given.of(image)
        found = extractor(read_image(image.path), boxes)
    except A2Error as error:
        return error
    # Rounded and chosen as in training: its regions came out of a store of this dtype.
    stored = replace(found, features=found.features.astype(extractor.config.dtype))
    return top_scoring(stored, max_regions)


def _batch(images: Sequence[Regions]) -> Batch:
    return collate([Item(str(place), regions, None) for place, regions in enumerate(images)])


def _given_boxes(config: ExtractConfig, boxes: Path | None, model: Path) -> GivenBoxes | None:
    if config.boxes == "given":
        if boxes is None:
            raise ConfigError(
                f"the captioner in {str(model)!r} was trained on given boxes; "
                "name the images' boxes with --boxes FILE (COCO instances)"
            )
        return GivenBoxes(boxes)
    if boxes is not None:
        raise ConfigError(
            f"the captioner in {str(model)!r} was trained on detected boxes; leave --boxes out"
        )
    return None
