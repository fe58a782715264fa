"""What captions images: the protocol that every captioner of the commands fulfils."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import A2Error, InputError
from a2cap.data.regions import Regions
from a2cap.extract.detector.input import Pixels
from a2cap.extract.image import read_image
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.captioning.decoding import Beam


@dataclass(frozen=True, eq=False)
class CaptionedImage:
    """Captions of an image, and its regions."""

    beams: list[Beam]
    """Captions with log-probabilities in nats, the chosen one first: in the order of their
    log-probability or, of decoding by consensus, of their agreement with each other."""
    regions: Regions
    """What the captioner saw, with boxes (R, 4) in pixels."""
    attention: CaptionAttention | None = None
    """At each token of the first caption `original` and `aligned` (L, R), and `layers`, those of
    each layer (H, L, R); None without attention, or if it was not asked for."""


@dataclass(frozen=True, eq=False)
class OpenedImage:
    """An image to caption: (H, W, 3) uint8 BGR.

    boxes: (R, 4) x1 y1 x2 y2 in pixels, for a captioner that reads boxes, else None; labels: the
    same boxes with their scores.
    """

    pixels: Pixels
    boxes: NDArray[np.float32] | None = None
    labels: Instances | None = None

    @classmethod
    def of(cls, file: Path | None) -> "OpenedImage":
        """Read a file of data.images; InputError if it is missing or damaged."""
        if file is None:
            raise InputError("image file not found; check data.images")
        return cls(read_image(file))


class BatchCaptioner(Protocol):
    """A captioner of batches of images, which may report attention at each word."""

    @property
    def about(self) -> str:
        """What the captioner is and is not; may be empty."""

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the captioner, such as its model and its decoding."""

    @property
    def alignment(self) -> AlignmentConfig:
        """Alignment of its attention; fusion none without one."""

    @property
    def reads_boxes(self) -> bool:
        """True if each image needs user-supplied boxes."""

    def caption_each(
        self, images: Sequence[Callable[[], OpenedImage]], *, attention: bool = False
    ) -> list[CaptionedImage | A2Error]:
        """Return the captions of the images that each function opens, or its A2Error.

        attention: add that at each word of the top-scoring captions, by layer and head too.
        """

    def attend(self, image: OpenedImage, caption: str) -> CaptionedImage:
        """Return a given caption of an image with the attention at each word, by layer and head.

        Raises InputError for an image that it cannot take, and words that it does not have.
        """

    def tokens(self, width: int, height: int) -> int:
        """Return what an image of this size costs beside others; 0 if sizes make no difference."""
