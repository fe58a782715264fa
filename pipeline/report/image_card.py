"""Image in a report: its thumbnail, its regions, and the attention to them at each token."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.files.image_file import open_image

THUMBNAIL_SIDE = 320
"""Pixels of the longer side."""

FIXED_POINT = 1 << 14
"""Attention is embedded in 16 bits as multiples of 1 / FIXED_POINT; its largest value is e."""

MAX_LAYER_BYTES = 8 << 20
"""Bytes of a page for the attention of each layer and head: 50 images of 36 regions with A2's six
layers of eight heads."""

_JPEG_QUALITY = 78
_ORIENTATION, _QUARTER_TURNED = 0x0112, 5


@dataclass(frozen=True)
class ImageCard:
    """An image with its regions, as the report draws it.

    image: its file, or None if it is missing; the report then draws the boxes alone.
    width, height: in pixels, after EXIF rotation; boxes refer to that.
    boxes: (R, 4), x1 y1 x2 y2. names: category of each region, empty if unknown.
    scores: (R,) confidence, or None. attention: at each token of the caption, or None.
    truth: annotated boxes, or None.
    """

    image: Path | None
    width: int
    height: int
    boxes: NDArray[np.floating]
    names: Sequence[str]
    scores: NDArray[np.floating] | None = None
    attention: CaptionAttention | None = None
    truth: Instances | None = None

    def as_json(self, caption: str) -> dict[str, object]:
        """Return the card for the report's script."""
        return {
            "thumbnail": thumbnail(self.image),
            "width": self.width,
            "height": self.height,
            "boxes": _corners(self.boxes),
            "names": list(self.names),
            "scores": None if self.scores is None else _rounded(self.scores, 2),
            "truth": {"boxes": _corners(self.truth.boxes), "names": list(self.truth.names)}
            if self.truth
            else None,
            "attention": self.attention
            and {
                "tokens": caption.split(),
                **_rows(self.attention),
                "layers": [
                    {"heads": len(layer.original), **_rows(layer)}
                    for layer in self.attention.layers
                ],
            },
        }


def _corners(boxes: NDArray[np.floating]) -> list[list[float]]:
    return [[round(float(corner), 1) for corner in box] for box in boxes]


def plain_cards(
    image_ids: Iterable[str], files: Mapping[str, Path]
) -> Iterator[tuple[str, ImageCard]]:
    """Yield a card without regions for each image that has a readable file."""
    for image_id in image_ids:
        try:
            with open_image(files[image_id]) as opened:
                width, height = opened.size
                # EXIF orientations from 5 on turn the image by a quarter.
                if opened.getexif().get(_ORIENTATION, 1) >= _QUARTER_TURNED:
                    width, height = height, width
        except (KeyError, OSError, Image.DecompressionBombError):
            continue
        yield image_id, ImageCard(files[image_id], width, height, np.zeros((0, 4)), [])


def thumbnail(image: Path | None) -> str | None:
    """Return an upright JPEG as a data URI, or None for an image that cannot be read."""
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


def _rows(attention: CaptionAttention) -> dict[str, object]:
    """Return the rows of attention, head by head; aligned attention only with a mask."""
    is_aligned = attention.keep is not None
    return {
        "original": _packed(attention.original),
        "aligned": _packed(attention.aligned) if is_aligned else None,
        "keep": None if attention.keep is None else _packed(attention.keep),
        "gate": None if attention.gate is None else _rounded(attention.gate.ravel(), 3),
    }


def embedded_bytes(attention: CaptionAttention) -> int:
    """Return the bytes of a page that the rows of attention take, without the gate."""
    matrices = 1 if attention.keep is None else 3
    return matrices * attention.original.size * 8 // 3  # base64 of 16 bits


def _packed(values: NDArray[np.float32]) -> str:
    # Half the size of base64 of floats; an error of 1 / 32768 is not visible.
    fixed = np.round(values.astype(float) * FIXED_POINT).clip(0, 0xFFFF)
    return base64.b64encode(fixed.astype("<u2").tobytes()).decode()


def _rounded(values: NDArray[np.floating], digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
