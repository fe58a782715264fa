"""An image in a report: its thumbnail, its regions, and the attention to them at each word."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.files.image_file import open_image

THUMBNAIL_SIDE = 320
"""Pixels of the longer side."""

FIXED_POINT = 1 << 14
"""Attention is embedded in 16 bits as multiples of 1 / FIXED_POINT; its largest value is e."""

_JPEG_QUALITY = 78


@dataclass(frozen=True)
class ShownImage:
    """What is drawn of one image.

    image: its file, or None where it is not at hand; the report then shows the boxes alone.
    width, height: in pixels, after turning it as its EXIF data says; boxes refer to that.
    boxes: (R, 4), x1 y1 x2 y2. names: what each region shows, empty where that is not known.
    scores: (R,) how sure it is, or None. attention: at each word of the caption, or None.
    """

    image: Path | None
    width: int
    height: int
    boxes: NDArray[np.floating]
    names: Sequence[str]
    scores: NDArray[np.floating] | None = None
    attention: CaptionAttention | None = None

    def as_json(self, caption: str) -> dict[str, object]:
        """What the script of the report reads."""
        return {
            "thumbnail": thumbnail(self.image),
            "width": self.width,
            "height": self.height,
            "boxes": np.round(self.boxes.astype(float), 1).tolist(),
            "names": list(self.names),
            "scores": None if self.scores is None else _rounded(self.scores, 2),
            "attention": None if self.attention is None else _attention(self.attention, caption),
        }


def thumbnail(image: Path | None) -> str | None:
    """A JPEG as a data URI, turned as its EXIF data says, or None where it cannot be read."""
    if image is None:
        return None
    try:
        with open_image(image) as opened:
            # Before anything else touches the pixels: a JPEG is then decoded at reduced size.
            opened.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
            small = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    content = io.BytesIO()
    small.save(content, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


def _attention(attention: CaptionAttention, caption: str) -> dict[str, object]:
    """The words and, row by row, the attention; aligned and keep where there is an alignment."""
    is_aligned = attention.keep is not None
    return {
        "words": caption.split(),
        "original": _packed(attention.original),
        "aligned": _packed(attention.aligned) if is_aligned else None,
        "keep": None if attention.keep is None else _packed(attention.keep),
        "gate": None if attention.gate is None else _rounded(attention.gate, 3),
    }


def _packed(values: NDArray[np.float32]) -> str:
    fixed = np.round(values.astype(float) * FIXED_POINT).clip(0, 0xFFFF)
    return base64.b64encode(fixed.astype("<u2").tobytes()).decode()


def _rounded(values: NDArray[np.floating], digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
