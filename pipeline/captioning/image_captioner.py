"""Captioner of images that a2 trained: extraction and decoding in one process."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.captions.vocabulary import UNK
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.regions import Regions, top_scoring
from a2cap.extract.detector.input import Pixels
from a2cap.extract.extract_config import LITE
from a2cap.extract.extractor import load_extractor
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.plug_ins import plug_in_of
from a2cap.model.threads import map_in_threads
from a2cap.pipeline.captioning.adapted.pretrained import pretrained_folder
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner, CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.model_description import EXTRACTOR, extractor_weights
from a2cap.pipeline.captioning.saved_captioner import load_captioner
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.weights.captioners import BUNDLED

if TYPE_CHECKING:
    from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages

logger = logging.getLogger(__name__)

_mixed_lock = Lock()
"""Held while a captioner decodes in mixed precision, which replaces its parameters."""

_DRAWINGS = "scenes"
"""Name of the data of `a2 scenes`."""

_ABOUT = {
    _DRAWINGS: "Trained on drawings of a2 scenes; captions of photographs mean nothing.",
    "coco-photos": "Trained on 5,557 photographs of everyday scenes (COCO). It names the main "
    "objects, often with a wrong detail, but not who people are, nor places, brands or texts: do "
    "not rely on a caption.",
}
"""Name of the data -> what a captioner of it is good for."""


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
    return ImageCaptioner(models, **how) if folder is None else open_pretrained(folder, **how)


def open_pretrained(
    folder: Path, *, decoding: CaptioningConfig, runtime: RuntimeConfig, least_beams: int = 1
) -> "AdaptedImages":
    """Load a model of transformers from a folder; least_beams: as for `ImageCaptioner`."""
    # an optional package
    from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages

    return AdaptedImages(folder, decoding=decoding, runtime=runtime, least_beams=least_beams)


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
        self._loaded = load_captioner(
            models,
            device=device,
            average=decoding.ensemble_average,
            weights=decoding.ensemble_weights,
        )
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

        pixels: (H, W, 3) uint8 BGR.
        boxes: (R, 4) x1 y1 x2 y2 in pixels, of a captioner trained on given boxes, else None.
        labels: the same boxes with their scores.
        Raises InputError for an unusable image and for unusable, missing or needless boxes.
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


def _batch(images: Sequence[Regions]) -> Batch:
    return collate([Item(str(number), regions, None) for number, regions in enumerate(images)])
