"""A figure of the attention at each word of a caption, original and aligned.

A region is the brighter the more attention it has; an even share is as faded as none, and the
top-scoring region has a frame. Attention that is spread evenly fades nothing. Over the cells of a
grid attention is drawn as in Show, Attend and Tell (Xu et al. 2015): up-sampled smoothly, white is
attended. All panels share one scale, so that words and both kinds of attention can be compared.
"""

import io
import math
import os
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
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.data.regions import Regions, is_grid
from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.caption_images import CaptionedImage
from a2cap.pipeline.captioning.given_boxes import NamedImage

FIGURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")

_LONGEST_STEM = 220  # bytes
_COLUMNS = 6  # words per row
_PANEL = 1.7  # inches
_LONGEST_SIDE = 320  # pixels of a panel's image; more are invisible and make the file large
# As in the report (report/templates/attention.js); an even share is 1 / R of R regions.
_FADED = 0.75  # of what is not attended, if the peak is _PEAK times even or more
_PEAK = 4.0  # times even: a weaker peak fades the rest less
_OVERLAY = 0.7  # share of the map over a grid; the authors' figures have 0.8
_SPREAD = 1.5  # times even: below, no region stands out


class FigurePaths:
    """Paths of figures: one file, or files in a folder.

    In a folder a figure has its image's name and the suffix .png; the second image of that name
    gets the suffix "-2". Raises ConfigError for one file if there may be `many` images, and for a
    file whose suffix is not a figure's.
    """

    def __init__(self, path: Path, *, many: bool) -> None:
        self._file = path.suffix.lower() in FIGURE_SUFFIXES
        if self._file and many:
            raise ConfigError(
                f"--figure names one file for many images: {str(path)!r}; "
                "name a folder (a name without the suffix of an image)"
            )
        # one image has one figure; a folder for many may be called "figures.v2"
        meant_as_file = path.suffix and (not many or path.suffix.lower() in IMAGE_SUFFIXES)
        if meant_as_file and not self._file and not path.is_dir():
            raise ConfigError(
                f"--figure has an unknown suffix: {str(path)!r}; use one of "
                f"{', '.join(FIGURE_SUFFIXES)}, or name a folder without a suffix"
            )
        self._path = path
        self._taken: set[Path] = set()

    def for_image(self, image: Path) -> Path:
        """Return the path for the figure of an image, and create its folder."""
        folder = self._path.parent if self._file else self._path
        folder.mkdir(parents=True, exist_ok=True)
        # a name has at most 255 bytes, and the temporary one is longer than that of the figure
        stem = os.fsdecode(os.fsencode(image.stem)[:_LONGEST_STEM])
        path, count = self._path if self._file else folder / f"{stem}.png", 1
        while not self._file and path in self._taken:
            count += 1
            path = folder / f"{stem}-{count}.png"
        self._taken.add(path)
        return path


def write_figure(
    path: Path,
    image: NamedImage,
    captioned: CaptionedImage,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Draw the attention at each word of the top-scoring caption; the suffix sets the format.

    layer, head: as in `attention_figure`. Raises A2Error for a captioner without attention.
    """
    if captioned.attention is None:
        raise A2Error(
            "nothing to draw: this captioner has no attention to regions; leave --figure out"
        )
    pixels = read_image(image.path)[:, :, ::-1]
    figure = attention_figure(pixels, captioned, captioned.attention, layer=layer, head=head)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts; it then draws a box in place of a word
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=120)
    write_durably(path, drawn.getvalue())


def attention_figure(
    pixels: NDArray[np.uint8],
    captioned: CaptionedImage,
    attention: CaptionAttention,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Figure:
    """Draw the image with its caption, and below it two panels per word, six words per row.

    pixels: (H, W, 3) uint8 RGB. layer, head: counted from 1, draw that layer or head in place of
    the mean. Without alignment there is one panel per word.
    """
    attention = attention.of(layer, head)
    caption = captioned.beams[0].caption
    words = caption.split()
    kinds = {"original": _times_even(attention.original)}
    if attention.keep is not None:
        kinds["aligned"] = _times_even(attention.aligned)
    rows = math.ceil(len(words) / _COLUMNS) * len(kinds)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    shown = np.asarray(image)
    height = _PANEL * min(2.0, max(0.5, shown.shape[0] / shown.shape[1]))
    size = (_PANEL * _COLUMNS, 2 * height + 0.9 + rows * (height + 0.25))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(1 + rows, _COLUMNS, height_ratios=[2.0] + [1.0] * rows)
    whole = figure.add_subplot(grid[0, :])
    whole.imshow(shown)
    whole.set_axis_off()
    whole.set_title(textwrap.fill(caption, 90) or "(no words)", fontsize=11, parse_math=False)
    peak = max((float(times.max()) for times in kinds.values() if times.size), default=1.0)
    for position, word in enumerate(words):
        line, column = divmod(position, _COLUMNS)
        for below, (kind, times) in enumerate(kinds.items()):
            axes = figure.add_subplot(grid[1 + line * len(kinds) + below, column])
            _show_attention(axes, shown, captioned.regions, times[position], peak=peak)
            axes.set_title("" if below else word, fontsize=9, parse_math=False)
            gate = attention.gate if below else None
            notes = [] if gate is None else [f"gate {gate[position]:.2f}"]
            notes += ["spread evenly"] if times[position].max() < _SPREAD else []
            axes.set_xlabel(", ".join(notes), fontsize=7)
            if column == 0 and len(kinds) > 1:
                axes.set_ylabel(kind, fontsize=8)
    return figure


def _times_even(attention: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide the rows of (L, R) by their mean, so that an even share is 1."""
    # rows of aligned attention sum to up to e and would only be brighter
    times: NDArray[np.float32] = attention / attention.mean(axis=1, keepdims=True)
    return times


def _show_attention(
    axes: Axes,
    shown: NDArray[np.uint8],
    regions: Regions,
    times: NDArray[np.float32],
    *,
    peak: float,
) -> None:
    """Draw one panel; times: (R,) times even; peak: the largest of all panels."""
    if is_grid(regions):
        axes.imshow(_lit(shown, regions, times / peak))
        axes.set(xticks=[], yticks=[])
        return
    height, width = shown.shape[:2]
    faded = np.zeros((height, width), np.float32)
    if times.max() >= _SPREAD:
        boxes = regions.boxes * ([width / regions.width, height / regions.height] * 2)
        depth = _FADED * min(1.0, (peak - 1) / (min(_PEAK, len(times)) - 1))
        weights = (times - 1).clip(0) / (peak - 1)
        faded = depth * (1 - _strength(boxes, weights, height=height, width=width))
        x1, y1, x2, y2 = boxes[int(times.argmax())]
        axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="#d62728"))
    axes.imshow((shown * (1 - faded[:, :, None]) + 255 * faded[:, :, None]).astype(np.uint8))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])


def _lit(
    shown: NDArray[np.uint8], regions: Regions, weights: NDArray[np.floating]
) -> NDArray[np.uint8]:
    """Return the image, dark where the weights of the cells are 0 and white where they are 1."""
    (height, width), cells = shown.shape[:2], math.isqrt(len(weights))
    x, y = width / regions.width, height / regions.height
    corners = (*regions.boxes[0, :2], *regions.boxes[-1, 2:])  # a crop leaves a margin
    left, top, right, bottom = (
        round(float(value) * scale) for value, scale in zip(corners, (x, y, x, y), strict=True)
    )
    of_cells = Image.fromarray(weights.reshape(cells, cells).astype(np.float32))
    smooth = of_cells.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    light = np.zeros((height, width, 1), np.float32)
    light[top:bottom, left:right, 0] = np.asarray(smooth).clip(0, 1)
    mixed: NDArray[np.uint8] = ((1 - _OVERLAY) * shown + _OVERLAY * 255 * light).astype(np.uint8)
    return mixed


def _strength(
    boxes: NDArray[np.floating], weights: NDArray[np.floating], *, height: int, width: int
) -> NDArray[np.float32]:
    """Return (H, W): for each pixel the maximum over the regions that cover it."""
    strength = np.zeros((height, width), np.float32)
    for (x1, y1, x2, y2), weight in zip(boxes, weights, strict=True):
        rows = slice(max(0, math.floor(y1)), max(0, math.ceil(y2)))
        part = strength[rows, max(0, math.floor(x1)) : max(0, math.ceil(x2))]
        np.maximum(part, weight, out=part)
    return strength
