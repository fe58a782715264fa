"""Captions of image files: extraction and decoding in one process."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.captions.vocabulary import UNK
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.image_file import image_size
from a2cap.data.regions import Regions, top_scoring
from a2cap.extract.detector.input import Pixels
from a2cap.extract.extract_config import LITE
from a2cap.extract.extractor import load_extractor
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.extract.image import read_image
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.erasure import ErasureMeter, kept_log_probs
from a2cap.model.plug_ins import plug_in_of
from a2cap.model.threads import map_in_threads
from a2cap.pipeline.captioning.adapted.pretrained import pretrained_folder
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner, CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.model_description import EXTRACTOR, extractor_weights
from a2cap.pipeline.captioning.named_images import GivenBoxes, NamedImage
from a2cap.pipeline.captioning.saved_captioner import load_captioner
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.weights.captioners import BUNDLED

logger = logging.getLogger(__name__)

_mixed_lock = Lock()
"""Held while a captioner decodes in mixed precision, which replaces its parameters."""

_AHEAD = 4
"""Batches whose images are sorted by their cost, where costs differ."""
_SHAPES = ((1000, 1000), (1500, 500), (300, 200))
"""Sizes of which some have more tokens than others, unless no size has."""

_DRAWINGS = "scenes"
"""Name of the data of `a2 scenes`."""

_ABOUT = {
    _DRAWINGS: "Trained on drawings of a2 scenes; captions of photographs mean nothing.",
    "coco-photos": "Trained on 5,557 photographs of everyday scenes (COCO). It names the main "
    "objects, often with a wrong detail, but not who people are, nor places, brands or texts: do "
    "not rely on a caption.",
}
"""Name of the data -> what a captioner of it is good for."""


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


def open_captioner(
    models: Sequence[Path],
    *,
    decoding: CaptioningConfig,
    runtime: RuntimeConfig,
    least_beams: int = 1,
) -> BatchCaptioner:
    """Load a captioner: trained by a2, an ensemble, or a model of transformers.

    models: directories, or the name of a model on the hub.
    least_beams: as for `ImageCaptioner`.
    Raises A2Error for an unusable model.
    """
    how: dict[str, Any] = {"decoding": decoding, "runtime": runtime, "least_beams": least_beams}
    folder = pretrained_folder(models)
    if folder is None:
        return ImageCaptioner(models, **how)
    # an optional package
    from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages

    return AdaptedImages(folder, **how)


class ImageCaptioner:
    """A trained captioner, or an ensemble, with the extractor of its training regions.

    least_beams: raises a smaller beam_size, also that of a bundled captioner. Raises A2Error for an
    unusable model.
    """

    def __init__(
        self,
        models: Sequence[Path],
        *,
        decoding: CaptioningConfig,
        runtime: RuntimeConfig,
        least_beams: int = 1,
    ) -> None:
        if decoding.prompt is not None:
            raise ConfigError(
                f"prompt is {decoding.prompt!r}, but captioners of a2 read no text; leave it out"
            )
        device = prepare_device(runtime)
        self._loaded = load_captioner(models, device=device, average=decoding.ensemble_average)
        decoding = decoding.model_copy(update=_own_decoding(models, decoding))
        most = max(decoding.beam_size, least_beams)
        self._decoding = decoding.model_copy(update={"beam_size": most})
        self._models = list(models)
        model = models[0]  # all have the same extractor
        record = ExtractorRecord.read(model / EXTRACTOR)
        if record.source is not None:
            raise A2Error(
                f"the captioner in {str(model)!r} was trained on imported features "
                f"({record.source!r}), which a2 cannot extract from images; train one on features "
                'of "a2 extract"'
            )
        self.extract_config = record.config
        # small networks alone: others fill torch's own threads and would need memory of each;
        # captioners that are known: one of a user may keep a state;
        # not by chance: the random numbers of an image depend on those before it
        is_small = record.config.pools_map and record.config.grid_backbone in LITE
        is_known = plug_in_of(self._loaded.description.model.kind) is None
        is_safe = is_small and is_known and self._decoding.method != "sampling"
        self._is_mixed = self._decoding.precision != "fp32"
        self._in_threads = device.type == "cpu" and is_safe and not self._is_mixed
        weights = extractor_weights(model)
        self._extractor = load_extractor(weights, config=self.extract_config, device=str(device))
        if weights.parent == model:
            record.require_weights(weights)  # a flipped bit loads silently
        if self._loaded.description.trained_on == _DRAWINGS:
            logger.warning(
                "the captioner was trained on drawings of a2 scenes; its captions of photographs "
                "mean nothing"
            )

    @property
    def about(self) -> str:
        """What the captioner is and is not; empty unless its data are known."""
        return _ABOUT.get(self._loaded.description.trained_on or "", "")

    @property
    def alignment(self) -> AlignmentConfig:
        """Alignment of the attention, of an ensemble that of its first captioner."""
        return self._loaded.description.model.alignment

    @property
    def reads_boxes(self) -> bool:
        """True if it was trained on given boxes."""
        return self.extract_config.boxes == "given"

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the captioner: model, vocabulary, regions, decoding, use."""
        loaded, decoding = self._loaded, self._decoding
        model, vocabulary = loaded.description.model, loaded.vocabulary
        fusion = model.alignment.fusion
        beams = f"best of {decoding.beam_size} " + (
            "samples" if decoding.method == "sampling" else "beams"
        )
        return {
            "model": f"{model.kind}{'' if fusion == 'none' else f', fusion {fusion}'}",
            "vocabulary": f"{len(vocabulary):,} entries",
            "regions": ExtractorRecord.read(self._models[0] / EXTRACTOR).summary,
            "decoding": f"{beams}, by consensus" if decoding.consensus else beams,
            **({"about": self.about} if self.about else {}),
        }

    def extract(
        self,
        pixels: Pixels,
        boxes: NDArray[np.float32] | None = None,
        *,
        labels: Instances | None = None,
    ) -> Regions:
        """Return the regions of an image as the captioner's training read them.

        pixels: (H, W, 3) uint8 BGR; boxes: (R, 4) x1 y1 x2 y2 in pixels, of a captioner trained on
        given boxes, else None; labels: the same boxes with their scores. Raises InputError for an
        unusable image and for unusable, missing or needless boxes.
        """
        if (boxes is None) == (self.extract_config.boxes == "given"):
            raise InputError(
                "the captioner was trained on given boxes; give those of the image"
                if boxes is None
                else "the captioner was not trained on given boxes; leave boxes out"
            )
        regions = self._extractor(pixels, boxes)
        regions = regions if labels is None else labels.labelled(regions)
        # round and select as in training, whose regions came from a store of this dtype
        stored = replace(regions, features=regions.features.astype(self.extract_config.dtype))
        return top_scoring(stored, self._loaded.description.max_regions)

    def caption_each(
        self, images: Sequence[Callable[[], OpenedImage]], *, attention: bool = False
    ) -> list[CaptionedImage | A2Error]:
        """Return the captions of the images that each function opens, or its A2Error.

        The images are decoded together, or in as many parts as threads work on them.
        """
        threads = torch.get_num_threads() if self._in_threads else 1
        size = max(1, -(-len(images) // threads))
        parts = [images[at : at + size] for at in range(0, len(images), size)]
        captioned = map_in_threads(partial(self._caption_part, attention=attention), parts)
        return list(chain.from_iterable(captioned))

    def _caption_part(
        self, images: Sequence[Callable[[], OpenedImage]], *, attention: bool
    ) -> list[CaptionedImage | A2Error]:
        extracted = list(map(self._extracted, images))
        decoded = self.caption([regions for regions in extracted if isinstance(regions, Regions)])
        captioned = iter(self.with_attention(decoded) if attention else decoded)
        return [item if isinstance(item, A2Error) else next(captioned) for item in extracted]

    def _extracted(self, read: Callable[[], OpenedImage]) -> Regions | A2Error:
        try:
            image = read()
            return self.extract(image.pixels, image.boxes, labels=image.labels)
        except A2Error as error:
            return error

    def caption(self, images: Sequence[Regions]) -> list[CaptionedImage]:
        """Decode images, as `extract` returned them, together; return their captions."""
        if not images:
            return []
        with self._alone():
            decoded = list(self._loaded.decode([_batch(images)], self._decoding))
        return [
            CaptionedImage(beams, regions)
            for regions, (_, beams) in zip(images, decoded, strict=True)
        ]

    def with_attention(self, captioned: Sequence[CaptionedImage]) -> list[CaptionedImage]:
        """Add the attention at each word of the top-scoring captions, by layer and head too."""
        if not captioned:
            return []
        batch = _batch([image.regions for image in captioned])
        captions = {str(number): image.beams[0].caption for number, image in enumerate(captioned)}
        with self._alone():
            # empty for a captioner without attention
            maps = dict(self._loaded.attend([batch], captions, layers=True))
        return [replace(image, attention=maps.get(str(n))) for n, image in enumerate(captioned)]

    def _alone(self) -> AbstractContextManager[object]:
        return _mixed_lock if self._is_mixed else nullcontext()

    def attend(self, image: OpenedImage, caption: str) -> CaptionedImage:
        """Return a given caption of an image with the attention at each word.

        Raises InputError as `extract` does, and for words that the captioner does not know.
        """
        self._require_words(caption)
        regions = self.extract(image.pixels, image.boxes, labels=image.labels)
        return self.with_attention([CaptionedImage([Beam(caption, math.nan)], regions)])[0]

    def erase(self, image: OpenedImage, caption: str, meter: ErasureMeter) -> None:
        """Measure which regions of an image a given caption depends on; raises as `attend`."""
        attention = self.attend(image, caption)
        if attention.attention is None:
            raise InputError("the captioner has no attention; name one that attends to regions")
        batch, loaded = _batch([attention.regions]).to(self._loaded.device), self._loaded
        scores = {"attention": torch.from_numpy(attention.attention.original)}
        if (keep := attention.attention.keep) is not None:
            scores["aligned"] = torch.from_numpy(attention.attention.aligned)
            scores["evidence"] = 1 - torch.from_numpy(keep).double()
        tokens = torch.tensor(loaded.vocabulary.encode(caption.split()), device=loaded.device)
        log_probs_of = partial(
            kept_log_probs, loaded.captioner, batch.features[0], batch.boxes[0], caption=tokens
        )
        meter.measure(lambda kept: log_probs_of(kept.to(loaded.device)).cpu(), scores)

    def tokens(self, width: int, height: int) -> int:
        """Return 0: all images have as many regions."""
        return 0

    def _require_words(self, caption: str) -> None:
        words = caption.split()
        ids = self._loaded.vocabulary.encode(words)
        if unknown := [word for word, token in zip(words, ids, strict=True) if token == UNK]:
            raise InputError(
                f"the captioner has no word {unknown[0]!r} of {caption!r}; name one whose "
                "vocabulary has the words of the caption"
            )


def _own_decoding(models: Sequence[Path], decoding: CaptioningConfig) -> Mapping[str, object]:
    """Return the settings of a bundled captioner, unless `decoding` states the beams."""
    if decoding.model_fields_set & {"beam_size", "consensus"}:
        return {}
    return next((b.decoding for b in BUNDLED.values() if [b.folder] == list(models)), {})


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
    own = CaptioningConfig(precision=decoding.precision)
    captioner = open_captioner(models, decoding=own, runtime=runtime)
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


def _batch(images: Sequence[Regions]) -> Batch:
    return collate([Item(str(number), regions, None) for number, regions in enumerate(images)])


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
