"""Captions of images, with the attention at each of their words."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.attention_figure import attention_figure, word_figure
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.outputs.output import caption_line
from a2cap.pipeline.report.image_card import data_uri

_SHOWN_SIDE = 480
"""Pixels of the longer side of an image in a notebook."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Caption(CaptionedImage):
    """The captions of an image, and the attention of the captioner."""

    path: Path | None
    """The image's file, None for an image in memory."""
    model: str
    """Name of the captioner."""
    kept: NDArray[np.uint8] | None = field(default=None, repr=False)
    """The image, (H, W, 3) uint8 RGB; None if it is read from `path` when it is shown."""

    @property
    def caption(self) -> str:
        """The best caption."""
        return self.beams[0].caption

    @property
    def tokens(self) -> list[str]:
        """The L tokens of the best caption."""
        return self.caption.split()

    @property
    def words(self) -> list["Word"]:
        """The L tokens of the best caption, each with its attention."""
        return [Word(self, position) for position in range(len(self.tokens))]

    @property
    def score(self) -> float:
        """The log-probability of the best caption in nats, end token included."""
        return self.beams[0].score

    @property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of the regions, (R, 4) x1 y1 x2 y2 in pixels."""
        return self.regions.boxes

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """The image, (H, W, 3) uint8 RGB; InputError if its file is no longer readable."""
        if self.kept is not None:
            return self.kept
        return read_image(Path(str(self.path)))[:, :, ::-1]

    def figure(self, *, layer: int | None = None, head: int | None = None) -> Figure:
        """Draw the attention at each token, of all layers and heads or of one, counted from 1.

        Raises InputError for a captioner without attention, and for no such layer or head. The
        figure shows itself in a notebook; `figure().savefig("dog.png")` writes it.
        """
        return attention_figure(self.pixels, self, layer=layer, head=head)

    def row(self) -> dict[str, Any]:
        """Return the caption as JSON values: a line of `a2 caption --json`, a row of a table.

        A file of such lines is read by `a2 score`, and by `load_dataset("json", …)` of `datasets`.
        """
        name = None if self.path is None else str(self.path)
        return caption_line(name, self, self.model)

    def __repr__(self) -> str:
        return f"Caption({self.caption!r}, score={self.score:.3f}, path={str(self.path or '')!r})"

    def _repr_html_(self) -> str:
        """Return the image with its captions, as a notebook shows it."""
        image = Image.fromarray(np.ascontiguousarray(self.pixels))
        image.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
        first, *alternatives = (
            f"{escape(beam.caption) or '(no words)'} <small>{beam.score:.2f}</small>"
            for beam in self.beams
        )
        rest = "".join(f"<div>{text}</div>" for text in alternatives)
        return (
            '<figure style="margin:0"><img alt="" style="max-width:100%" '
            f'src="{data_uri(image, quality=85)}">'
            f"<figcaption><b>{first}</b>{rest}</figcaption></figure>"
        )


@dataclass(frozen=True, eq=False)
class Word:
    """A token of a caption, counted from 0, and the attention to the R regions at it."""

    of: Caption = field(repr=False)
    position: int

    @property
    def text(self) -> str:
        """The token."""
        return self.of.tokens[self.position]

    @property
    def original(self) -> NDArray[np.float32] | None:
        """Attention as the layers computed it, (R,) float32; None without attention."""
        return self._row("original")

    @property
    def aligned(self) -> NDArray[np.float32] | None:
        """Attention after alignment, (R,) float32; the original one without alignment."""
        return self._row("aligned")

    def figure(self, *, layer: int | None = None, head: int | None = None) -> Figure:
        """Draw the attention at this token; layer, head and errors as for `Caption.figure`."""
        return word_figure(self.of.pixels, self.of, self.position, layer=layer, head=head)

    def _row(self, name: str) -> NDArray[np.float32] | None:
        attention = self.of.attention
        if attention is None:
            return None
        values: NDArray[np.float32] = getattr(attention, name)[self.position]
        return values

    def __repr__(self) -> str:
        return f"Word({self.text!r})"
