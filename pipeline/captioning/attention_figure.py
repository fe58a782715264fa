"""Where a captioner looked, word by word, as one image: the original and the aligned attention.

Every region is laid over the image as strongly as its share of the attention; the strongest has a
frame. One scale holds for the whole figure, so that words and both kinds of attention compare.
"""

import io
import math
import textwrap
import warnings
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.files.atomic import write_durably
from a2cap.data.regions import Regions
from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.caption_images import Captioned
from a2cap.pipeline.captioning.named_image import NamedImage

FIGURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")

_COLUMNS = 6
"""Words per row."""

_PANEL = 1.7
"""Inches per panel."""

_LONGEST_SIDE = 320
"""Pixels of a panel's image: more are not seen, and make the file large."""

_WEAKEST, _STRONGEST = 0.25, 1.0
"""Brightness of a region without attention, and of the one that was attended to the most."""


class FigurePlaces:
    """Where figures go: to the one file that `place` names, or below it as a folder.

    In a folder a figure has its image's name and the suffix .png; a second image of that name
    gets "-2" behind it. ConfigError where one file is named and there may be `many` images.
    """

    def __init__(self, place: Path, *, many: bool) -> None:
        self._file = place.suffix.lower() in FIGURE_SUFFIXES
        if self._file and many:
            raise ConfigError(
                f"--figure names one file for many images: {str(place)!r}; "
                "name a folder (a name without the suffix of an image)"
            )
        self._place = place
        self._taken: set[Path] = set()

    def of(self, image: Path) -> Path:
        """The file for the figure of an image; its folder is made."""
        folder = self._place.parent if self._file else self._place
        folder.mkdir(parents=True, exist_ok=True)
        path, count = self._place if self._file else folder / f"{image.stem}.png", 1
        while not self._file and path in self._taken:
            count += 1
            path = folder / f"{image.stem}-{count}.png"
        self._taken.add(path)
        return path


def write_figure(path: Path, image: NamedImage, captioned: Captioned) -> None:
    """Draws the attention at each word of the best caption; the suffix of `path` is the format.

    A2Error where the captioner has no attention.
    """
    if captioned.attention is None:
        raise A2Error(
            "nothing to draw: this captioner has no attention to regions; leave --figure out"
        )
    pixels = read_image(image.path)[:, :, ::-1]
    figure = attention_figure(pixels, captioned, captioned.attention)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts; a box in place of a word is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=120)
    write_durably(path, drawn.getvalue())


def attention_figure(
    pixels: NDArray[np.uint8], captioned: Captioned, attention: CaptionAttention
) -> Figure:
    """The image with its caption, and below it two panels per word, six words in a row.

    pixels: (H, W, 3) uint8 RGB. Without alignment there is one panel per word.
    """
    caption = captioned.beams[0].caption
    words = caption.split()
    kinds = {"original": _shares(attention.original)}
    if attention.keep is not None:
        kinds["aligned"] = _shares(attention.aligned)
    rows = math.ceil(len(words) / _COLUMNS) * len(kinds)
    shown = _shown(pixels)
    height = _PANEL * min(2.0, max(0.5, shown.shape[0] / shown.shape[1]))
    size = (_PANEL * _COLUMNS, 2 * height + 0.9 + rows * (height + 0.25))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(1 + rows, _COLUMNS, height_ratios=[2.0] + [1.0] * rows)
    _show_image(figure.add_subplot(grid[0, :]), shown, caption)
    strongest = max((float(paid.max()) for paid in kinds.values() if paid.size), default=1.0)
    for place, word in enumerate(words):
        line, column = divmod(place, _COLUMNS)
        for below, (kind, paid) in enumerate(kinds.items()):
            axes = figure.add_subplot(grid[1 + line * len(kinds) + below, column])
            _show_attention(axes, shown, captioned.regions, paid[place] / strongest)
            axes.set_title("" if below else word, fontsize=9, parse_math=False)
            if below and attention.gate is not None:
                axes.set_xlabel(f"gate {attention.gate[place]:.2f}", fontsize=7)
            if column == 0 and len(kinds) > 1:
                axes.set_ylabel(kind, fontsize=8)
    return figure


def _shares(paid: NDArray[np.float32]) -> NDArray[np.float32]:
    """(L, R) with rows that sum to 1: aligned attention need not, and would only be brighter."""
    shares: NDArray[np.float32] = paid / paid.sum(axis=1, keepdims=True)
    return shares


def _shown(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image, no side longer than _LONGEST_SIDE."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return np.asarray(image)


def _show_image(axes: Axes, shown: NDArray[np.uint8], caption: str) -> None:
    axes.imshow(shown)
    axes.set_axis_off()
    title = textwrap.fill(caption, 90) or "(no words)"
    axes.set_title(title, fontsize=11, parse_math=False)


def _show_attention(
    axes: Axes, shown: NDArray[np.uint8], regions: Regions, weights: NDArray[np.float32]
) -> None:
    """weights: (R,) in [0, 1]."""
    height, width = shown.shape[:2]
    boxes = regions.boxes * ([width / regions.width, height / regions.height] * 2)
    brightness = _brightness(boxes, weights, height=height, width=width)
    faded = shown * brightness[:, :, None] + 255 * (1 - brightness[:, :, None])
    axes.imshow(faded.astype(np.uint8))
    x1, y1, x2, y2 = boxes[int(weights.argmax())]
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="#d62728"))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])


def _brightness(
    boxes: NDArray[np.floating], weights: NDArray[np.float32], *, height: int, width: int
) -> NDArray[np.float32]:
    """(H, W): of each pixel the strongest of the regions over it."""
    strength = np.zeros((height, width), np.float32)
    for (x1, y1, x2, y2), weight in zip(boxes, weights, strict=True):
        rows = slice(max(0, math.floor(y1)), max(0, math.ceil(y2)))
        part = strength[rows, max(0, math.floor(x1)) : max(0, math.ceil(x2))]
        np.maximum(part, weight, out=part)
    return _WEAKEST + (_STRONGEST - _WEAKEST) * strength
