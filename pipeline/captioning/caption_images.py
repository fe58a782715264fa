"""Captions of image files: extraction and decoding in one process."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.files.image_file import image_size
from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner, CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.image_captioner import open_captioner
from a2cap.pipeline.captioning.named_images import GivenBoxes, NamedImage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)

_AHEAD = 4
"""Batches whose images are sorted by their cost, where costs differ."""
_SHAPES = ((1000, 1000), (1500, 500), (300, 200))
"""Sizes of which some have more tokens than others, unless no size has."""


def caption_files(
    images: Iterable[NamedImage],
    *,
    models: Sequence[Path],
    boxes: Path | None,
    decoding: CaptioningConfig,
    runtime: RuntimeConfig,
    least_beams: int = 1,
    batch_size: int = 16,
    attention: bool = False,
) -> Iterator[tuple[NamedImage, CaptionedImage | A2Error]]:
    """Return an iterator of each image with its captions, or the error for which it was skipped.

    Up to batch_size images are decoded together; where images cost differently, those that cost
    alike. They come in their order. least_beams: as for ImageCaptioner. Raises A2Error before any
    work for an unusable model, and ConfigError if boxes are missing for a model trained on given
    boxes or given for another one.
    """
    how: dict[str, Any] = {"decoding": decoding, "runtime": runtime, "least_beams": least_beams}
    captioner = open_captioner(models, **how)
    files_boxes = _given_boxes(captioner, boxes, models[0])

    def caption_batch(batch: Sequence[NamedImage]) -> Sequence[CaptionedImage | A2Error]:
        opened = [partial(_open, image, files_boxes) for image in batch]
        return captioner.caption_each(opened, attention=attention)

    is_uneven = len({captioner.tokens(*size) for size in _SHAPES}) > 1
    groups = _growing_groups(images, batch_size, batch_size * (_AHEAD if is_uneven else 1))
    cost_of = partial(_cost, captioner) if is_uneven else None
    in_groups = (_caption_group(group, batch_size, caption_batch, cost_of) for group in groups)
    return chain.from_iterable(in_groups)


def _cost(captioner: BatchCaptioner, image: NamedImage) -> int:
    try:
        return captioner.tokens(*image_size(image.path))
    except A2Error:  # reported when it is opened
        return 0


def _caption_group(
    group: Sequence[NamedImage],
    batch_size: int,
    caption_batch: Callable[[Sequence[NamedImage]], Sequence[CaptionedImage | A2Error]],
    cost_of: Callable[[NamedImage], int] | None,
) -> Iterator[tuple[NamedImage, CaptionedImage | A2Error]]:
    """Yield the images in their order, captioned in batches of those that cost most first."""
    costs = [cost_of(image) for image in group] if cost_of and len(group) > batch_size else []
    order = sorted(range(len(group)), key=lambda at: -costs[at] if costs else 0)
    waiting: dict[int, CaptionedImage | A2Error] = {}
    next_one = 0
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        waiting.update(zip(batch, caption_batch([group[at] for at in batch]), strict=True))
        while next_one in waiting:
            yield group[next_one], waiting.pop(next_one)
            next_one += 1


def attention_by(
    models: Sequence[Path],
    *,
    boxes: Path | None,
    decoding: CaptioningConfig,
    runtime: RuntimeConfig,
) -> Callable[[NamedImage, CaptionedImage], CaptionedImage]:
    """Return a function that replaces the attention and regions of captions by another captioner's.

    boxes: for a captioner trained on given boxes. Raises A2Error as `caption_files` does; the
    function does for an image that it cannot extract, and for words that the captioner has not.
    """
    # it decodes nothing: neither the prompt nor the beams of the other captioner are its own
    config = CaptioningConfig(precision=decoding.precision)
    captioner = open_captioner(models, decoding=config, runtime=runtime)
    files_boxes = _given_boxes(captioner, boxes if captioner.reads_boxes else None, models[0])

    def attend(image: NamedImage, captioned: CaptionedImage) -> CaptionedImage:
        other = captioner.attend(_open(image, files_boxes), captioned.beams[0].caption)
        return replace(captioned, regions=other.regions, attention=other.attention)

    return attend


def _growing_groups(
    images: Iterable[NamedImage], batch_size: int, most: int
) -> Iterator[list[NamedImage]]:
    """Yield groups of 1, 2, 4, … up to batch_size images, then of `most`."""
    rest, count = iter(images), 1  # the first alone, so that its caption comes early
    while group := list(islice(rest, count)):
        yield group
        count = min(2 * count, batch_size) if count < batch_size else max(count, most)


def _open(image: NamedImage, files_boxes: GivenBoxes | None) -> OpenedImage:
    """Read an image file and its user-supplied boxes."""
    labels = None if files_boxes is None else files_boxes.find(image)
    pixels = read_image(image.path)
    if labels is None:
        return OpenedImage(pixels)
    labels.require_usable(pixels.shape[1], pixels.shape[0])
    return OpenedImage(pixels, labels.boxes, labels)


def _given_boxes(captioner: BatchCaptioner, boxes: Path | None, model: Path) -> GivenBoxes | None:
    if boxes is None and captioner.reads_boxes:
        raise ConfigError(
            f"the captioner in {str(model)!r} was trained on given boxes; "
            "name the images' boxes with --boxes FILE (COCO instances)"
        )
    if boxes is not None and not captioner.reads_boxes:
        raise ConfigError(
            f"the captioner in {str(model)!r} was not trained on given boxes; leave --boxes out"
        )
    return None if boxes is None else GivenBoxes(boxes)
