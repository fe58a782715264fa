"""Trained captioners for images of Python programs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import Regions
from a2cap.extract.detector.input import Pixels
from a2cap.images import AnyImage, Channels, as_boxes, as_pixels
from a2cap.pipeline.captioning.attention_figure import attention_figure
from a2cap.pipeline.captioning.caption_images import CaptionedImage, ImageCaptioner
from a2cap.pipeline.captioning.config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.config import config_from
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.weights.captioners import DEFAULT

_TOGETHER = 16  # images that are decoded together by `Captioner.many`


@dataclass(frozen=True)
class Caption:
    """The captions of an image, and where the captioner looked.

    pixels: (H, W, 3) uint8 RGB. regions: what the captioner saw, with boxes (R, 4) in pixels.
    beams: captions with log-probabilities in nats, best first. attention: at each token of the best
    caption, `original` and `aligned` (L, R), and `layers`, those of each layer (H, L, R); None if
    the captioner has none.
    """

    pixels: NDArray[np.uint8]
    regions: Regions
    beams: list[Beam]
    attention: CaptionAttention | None

    @property
    def caption(self) -> str:
        """The best caption."""
        return self.beams[0].caption

    @property
    def tokens(self) -> list[str]:
        """The L tokens of the best caption."""
        return self.caption.split()

    @property
    def score(self) -> float:
        """The log-probability of the best caption in nats, end token included."""
        return self.beams[0].score

    @property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of the regions, (R, 4) x1 y1 x2 y2 in pixels."""
        return self.regions.boxes

    def figure(self, *, layer: int | None = None, head: int | None = None) -> Figure:
        """Draw the attention at each token, of all layers and heads or of one, counted from 1.

        Raises InputError for a captioner without attention, and for no such layer or head. The
        figure shows itself in a notebook; `figure().savefig("dog.png")` writes it.
        """
        if self.attention is None:
            raise InputError("nothing to draw: this captioner has no attention to regions")
        captioned = CaptionedImage(self.beams, self.regions, self.attention)
        return attention_figure(self.pixels, captioned, self.attention, layer=layer, head=head)


class Captioner:
    """A trained captioner, or an ensemble; call it with an image."""

    def __init__(self, models: Sequence[Path], *, device: str = "auto", **decoding: object) -> None:
        unknown = sorted(decoding.keys() - CaptioningConfig.model_fields.keys())
        if unknown:
            valid = ", ".join(CaptioningConfig.model_fields)
            raise ConfigError(f"unknown setting of decoding: {unknown[0]!r}; valid names: {valid}")
        config = config_from({"evaluate": decoding, "runtime": {"device": device}})
        self._captioner = ImageCaptioner(models, decoding=config.evaluate, runtime=config.runtime)

    def __call__(
        self,
        image: AnyImage,
        *,
        boxes: ArrayLike | None = None,
        channels: Channels = "rgb",
    ) -> Caption:
        """Caption one image.

        image: a path, a PIL image, or an array (H, W), (H, W, 3) or (H, W, 4) of uint8, whose
        colours are in the order of `channels`. boxes: (R, 4) x1 y1 x2 y2 in pixels, for a captioner
        trained on given boxes. Raises InputError for an unusable image or unusable boxes.
        """
        pixels = as_pixels(image, channels=channels)
        [caption] = self._decode([(pixels, self._captioner.extract(pixels, as_boxes(boxes)))])
        return caption

    def many(self, images: Iterable[AnyImage]) -> Iterator[Caption]:
        """Yield the captions of images in their order, decoded in groups."""
        rest = map(as_pixels, images)
        while group := list(islice(rest, _TOGETHER)):
            yield from self._decode([(pixels, self._captioner.extract(pixels)) for pixels in group])

    def _decode(self, images: Sequence[tuple[Pixels, Regions]]) -> Iterator[Caption]:
        found = self._captioner.caption([regions for _, regions in images])
        for (pixels, _), captioned in zip(images, found, strict=True):
            shown = self._captioner.add_attention(captioned)
            yield Caption(pixels[:, :, ::-1], shown.regions, shown.beams, shown.attention)


def load(
    model: str | Path | Sequence[str | Path] = DEFAULT, *, device: str = "auto", **decoding: object
) -> Captioner:
    """Load a trained captioner, or several directories as an ensemble.

    model: a directory that `a2 train` wrote, a folder above it, a name, the start of a key or
    "latest" of `a2 runs`, or a bundled captioner, "photos" or "scenes". device: auto, cpu, cuda or
    cuda:N. decoding: fields of the section `evaluate`, such as beam_size=3. Raises A2Error for an
    unusable directory or field.

    >>> captioner = load("artifacts/demo/train-xe/0123456789ab", beam_size=3)  # doctest: +SKIP
    """
    models = [model] if isinstance(model, str | Path) else list(model)
    return Captioner(find_trainings(map(Path, models)), device=device, **decoding)
