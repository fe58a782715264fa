"""Captions of image files by a trained captioner: extraction and decoding in one process."""

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
from a2cap.model.captioner import Captioner
from a2cap.pipeline.captioning.config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam, caption_batches
from a2cap.pipeline.captioning.ensemble import load_captioner
from a2cap.pipeline.captioning.given_boxes import GivenBoxes, NamedImage
from a2cap.pipeline.captioning.saved_captioner import (
    EXTRACTOR,
    EXTRACTOR_WEIGHTS,
    LoadedCaptioner,
)
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device

if TYPE_CHECKING:
    from a2cap.data.captions.attention_file import CaptionAttention


@dataclass(frozen=True)
class CaptionedImage:
    """Captions of an image, and its regions."""

    beams: list[Beam]  # best first
    regions: Regions
    attention: "CaptionAttention | None" = None  # of the first beam, on request


def caption_files(
    images: Iterable[NamedImage],
    *,
    models: Sequence[Path],
    boxes: Path | None,
    decoding: CaptioningConfig,
    runtime: RuntimeConfig,
    batch_size: int = 16,
    attention: bool = False,
) -> Iterator[tuple[NamedImage, CaptionedImage | A2Error]]:
    """Yield each image with its captions, or with the error for which it was skipped.

    Up to batch_size images are decoded together. Raises A2Error before any work for an unusable
    model, and ConfigError if boxes are missing for a model trained on given boxes or given for
    another one.
    """
    device = prepare_device(runtime)
    loaded = load_captioner(models, device=device, average=decoding.ensemble_average)
    model = models[0]  # all have the same extractor
    config = ExtractorRecord.read(model / EXTRACTOR).config
    given = _given_boxes(config, boxes, model)
    extractor = load_extractor(model / EXTRACTOR_WEIGHTS, config=config, device=str(device))
    decoder = _Decoder(loaded, decoding, device)
    for group in _growing_groups(images, batch_size):
        extracted = [
            _extract(image, extractor, given, loaded.description.max_regions) for image in group
        ]
        captioned = decoder([regions for regions in extracted if isinstance(regions, Regions)])
        for image, regions in zip(group, extracted, strict=True):
            if isinstance(regions, A2Error):
                yield image, regions
                continue
            result = next(captioned)
            yield image, decoder.add_attention(result) if attention else result


@dataclass(frozen=True)
class _Decoder:
    """A loaded captioner and the settings of its search."""

    loaded: LoadedCaptioner[Captioner]
    config: CaptioningConfig
    device: torch.device

    def __call__(self, images: Sequence[Regions]) -> Iterator[CaptionedImage]:
        """Yield the captions of images that are decoded together."""
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
            yield CaptionedImage(beams, regions)

    def add_attention(self, captioned: CaptionedImage) -> CaptionedImage:
        """Add the attention at each word of the top-scoring caption."""
        from a2cap.pipeline.captioning.attention import attention_of_captions  # loads h5py

        traced = attention_of_captions(
            self.loaded.captioner,
            [_batch([captioned.regions])],
            {"0": captioned.beams[0].caption},
            self.loaded.vocabulary,
            device=self.device,
        )
        return replace(captioned, attention=next((found for _, found in traced), None))


def _growing_groups(images: Iterable[NamedImage], batch_size: int) -> Iterator[list[NamedImage]]:
    """Yield groups of 1, 2, 4, … up to batch_size images."""
    rest, count = iter(images), 1  # the first alone, so that its caption comes early
    while group := list(islice(rest, count)):
        yield group
        count = min(2 * count, batch_size)


def _extract(
    image: NamedImage,
    extractor: AnyExtractor,
    given: GivenBoxes | None,
    max_regions: int | None,
) -> Regions | A2Error:
    """Extract the regions of an image, or return the error."""
    try:
        boxes = None if given is None else given.find(image)
        pixels = read_image(image.path)
        if boxes is not None:
            boxes.require_size(pixels.shape[1], pixels.shape[0])
        found = extractor(pixels, None if boxes is None else boxes.boxes)
    except A2Error as error:
        return error
    # round and select as in training, whose regions came from a store of this dtype
    stored = replace(found, features=found.features.astype(extractor.config.dtype))
    return top_scoring(stored, max_regions)


def _batch(images: Sequence[Regions]) -> Batch:
    return collate([Item(str(number), regions, None) for number, regions in enumerate(images)])


def _given_boxes(config: ExtractConfig, boxes: Path | None, model: Path) -> GivenBoxes | None:
    if boxes is None and config.boxes == "given":
        raise ConfigError(
            f"the captioner in {str(model)!r} was trained on given boxes; "
            "name the images' boxes with --boxes FILE (COCO instances)"
        )
    if boxes is not None and config.boxes != "given":
        raise ConfigError(
            f"the captioner in {str(model)!r} was trained on detected boxes; leave --boxes out"
        )
    return None if boxes is None else GivenBoxes(boxes)
