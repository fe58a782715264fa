"""Image of a page: its thumbnail, its regions, and the attention to them at each token."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import A2Error
from a2cap.data.files.image_file import image_size, open_image
from a2cap.data.regions import Regions, is_grid

THUMBNAIL_SIDE = 320
"""Pixels of the longer side."""

FIXED_POINT = 1 << 14
"""Attention is embedded in 16 bits as multiples of 1 / FIXED_POINT; its largest value is e."""

MAX_LAYER_BYTES = 8 << 20
"""Bytes of a page for the attention of each layer and head: 50 images of 36 regions with A2's six
layers of eight heads."""

EVEN = 1.5
"""Times the even share 1 / R: attention whose peak is below is spread evenly (attention.js)."""

PLACES = (
    *("upper left", "top", "upper right"),
    *("left", "middle", "right"),
    *("lower left", "bottom", "lower right"),
)
"""Quarters of an image, each half as wide and high, in steps of a quarter of a side."""

_FUNCTION_WORDS = (
    "a an the this that these those some there it its his her their he she they him them one two "
    "of on in at to with and or by for from up down off out over under into onto near next behind "
    "front beside between through is are was be being has have as while who which what not no very "
    "left right top side other each another"
)
_VAGUE_WORDS = (
    "sitting standing holding riding playing walking looking laying flying wearing eating being "
    "driving taking doing jumping hanging traveling watching grazing going getting cutting "
    "carrying waiting posing using swinging talking lying pulling smiling preparing running "
    "sleeping drinking showing coming making hitting working throwing trying leaning setting "
    "resting moving having passing staring putting reaching kneeling facing sits stands holds "
    "rides plays walks looks lies flies wears eats shows includes filled parked covered made "
    "picture image photo photograph drawing illustration scene view"
)
"""Usual verbs of COCO's captions, and words for the image: they say little of where it looks."""
_JPEG_QUALITY = 78


@dataclass(frozen=True)
class ImageCard:
    """An image with its regions, as the report draws it.

    image: its file, or None if it is missing; the report then draws the boxes alone.
    width, height: in pixels, after EXIF rotation; boxes refer to that.
    boxes: (R, 4), x1 y1 x2 y2.
    names: category of each region, empty if unknown.
    scores: (R,) confidence, or None.
    attention: at each token of the caption, or None.
    truth: annotated boxes, or None.
    is_grid: the boxes are the cells of an area, row by row, as `data.regions.is_grid` finds.
    certificates: (L, 2) or (L, 3), probability of each token given all regions, without the one
        that is attended to most, and without that after alignment.
    """

    image: Path | None
    width: int
    height: int
    boxes: NDArray[np.floating]
    names: Sequence[str]
    scores: NDArray[np.floating] | None = None
    attention: CaptionAttention | None = None
    truth: Instances | None = None
    is_grid: bool = False
    certificates: NDArray[np.floating] | None = None

    @classmethod
    def of_regions(
        cls, image: Path | None, regions: Regions, names: Sequence[str] = (), **further: Any
    ) -> "ImageCard":
        """Return the card of the regions of an image; further: other fields."""
        size = regions.width, regions.height
        return cls(image, *size, regions.boxes, names, is_grid=is_grid(regions), **further)

    def as_json(self, caption: str) -> dict[str, object]:
        """Return the card for the report's script."""
        attention, tokens = self.attention, caption.split()
        is_aligned = attention is not None and attention.keep is not None
        boxes = [] if self.is_grid else _corners(self.boxes)
        return {
            "thumbnail": thumbnail(self.image),
            "width": self.width,
            "height": self.height,
            "regions": len(self.boxes),
            "grid": self._grid if self.is_grid else None,
            # Cells have no names, and their boxes are those of the grid.
            "boxes": boxes,
            "names": list(self.names) if boxes else [],
            "scores": _rounded(self.scores, 2) if boxes and self.scores is not None else None,
            "truth": {"boxes": _corners(self.truth.boxes), "names": list(self.truth.names)}
            if self.truth
            else None,
            "attention": attention
            and {
                "tokens": tokens,
                "telling": telling_word(tokens, attention),
                "certificates": None
                if self.certificates is None
                else [_rounded(row, 4) for row in self.certificates],
                "places": [
                    _places(self.boxes, rows, (self.width, self.height))
                    for rows in (attention.original, attention.aligned)[: 1 + is_aligned]
                ],
                **_rows(attention),
                "layers": [
                    {"heads": len(layer.original), **_rows(layer)} for layer in attention.layers
                ],
            },
        }

    @property
    def _grid(self) -> dict[str, object]:
        """The rows and columns of cells, and the area x1 y1 x2 y2 that they divide."""
        [area] = _corners(np.concatenate([self.boxes[0, :2], self.boxes[-1, 2:]])[None])
        columns = int(np.isclose(self.boxes[:, 1], self.boxes[0, 1]).sum())
        return {"rows": len(self.boxes) // columns, "columns": columns, "area": area}


def telling_word(tokens: Sequence[str], attention: CaptionAttention) -> int | None:
    """Return the position of the noun or adjective whose attention alignment changes most.

    The change is the total variation distance of both rows, scaled to a sum of 1; ties, such as all
    words of a captioner without alignment, are broken by the larger peak. Function words and vague
    words count only if there are no others. Returns None if each word that counts has evenly spread
    attention, aligned or original (EVEN).
    """
    rows = [_shares(attention.original), _shares(attention.aligned)]
    if not tokens or not rows[0].size:
        return None
    peaks = [row.max(axis=1) * row.shape[1] for row in rows]
    changes = np.abs(rows[1] - rows[0]).sum(axis=1).round(6)
    empty_words = {*_FUNCTION_WORDS.split(), *_VAGUE_WORDS.split()}
    content = [i for i, token in enumerate(tokens) if token.lower() not in empty_words]
    uneven = [i for i in content or range(len(tokens)) if min(peaks[0][i], peaks[1][i]) >= EVEN]
    return max(uneven, key=lambda i: (changes[i], peaks[1][i], -i), default=None)


def _shares(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    sums = np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    shares: NDArray[np.floating] = rows / sums
    return shares


def _places(
    boxes: NDArray[np.floating], rows: NDArray[np.floating], size: tuple[int, int]
) -> list[tuple[str, float, float]]:
    """Return the quarter that gains most over an even row, its share, and its share of that.

    boxes: (R, 4); rows: (L, R). The share of a box is spread evenly over it.
    """
    if not len(boxes):
        return []
    halves = [_in_halves(boxes[:, axis], boxes[:, axis + 2], size[axis]) for axis in (0, 1)]
    parts = np.einsum("yr,xr->ryx", halves[1], halves[0]).reshape(len(boxes), len(PLACES))
    shares, even = _shares(rows) @ parts, parts.mean(axis=0)
    best = (shares - even).argmax(axis=1)
    return [
        (PLACES[k], round(float(row[k]), 3), round(float(even[k]), 3))
        for k, row in zip(best, shares, strict=True)
    ]


def _in_halves(
    low: NDArray[np.floating], high: NDArray[np.floating], side: int
) -> NDArray[np.floating]:
    """Return the parts (3, R) of intervals (R,) in the first, middle and last half of a side."""
    high = np.maximum(high, low + 0.1)  # a box without width or height
    starts = np.array([[0], [side / 4], [side / 2]])
    inside = np.minimum(high, starts + side / 2) - np.maximum(low, starts)
    parts: NDArray[np.floating] = inside.clip(0) / (high - low)
    return parts


def _corners(boxes: NDArray[np.floating]) -> list[list[float]]:
    return [[round(float(corner), 1) for corner in box] for box in boxes]


def plain_cards(
    image_ids: Iterable[str], files: Mapping[str, Path]
) -> Iterator[tuple[str, ImageCard]]:
    """Yield a card without regions for each image that has a readable file."""
    for image_id in image_ids:
        try:
            width, height = image_size(files[image_id])
        except (KeyError, A2Error):
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
    return data_uri(small, quality=_JPEG_QUALITY)


def data_uri(image: Image.Image, *, quality: int) -> str:
    """Return an image as a JPEG in a data URI."""
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality, optimize=True)
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
