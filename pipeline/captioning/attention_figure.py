"""A figure of the attention at each word of a caption, original and aligned.

A region is the brighter the more attention it has; an even share is as faded as none, and the
top-scoring region has a frame. Over the cells of a grid attention is drawn as in Show, Attend and
Tell (Xu et al. 2015): up-sampled smoothly, white is attended. Panels share one scale, so that words
and both kinds of attention can be compared; the rows of two captioners have one each. A panel hides
the less of the image the weaker its own peak is, and nothing if attention is spread evenly: on the
scale of a strong word it would be nearly black.
"""

import io
import math
import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from PIL import Image

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.data.regions import Regions, grid_shape, is_grid
from a2cap.extract.image import read_image
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.captioning_config import ANIMATED, Style
from a2cap.pipeline.captioning.named_images import ImageNames, NamedImage
from a2cap.pipeline.captioning.outputs.output import UnwritableError

FIGURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg", ANIMATED)

_LONGEST_STEM = 220  # bytes
_COLUMNS = 6  # words per row
_PANEL = 1.7  # inches
_LONGEST_SIDE = 320  # pixels of a panel's image; more are invisible and make the file large
# As in the report (report/templates/attention.js); an even share is 1 / R of R regions.
_FADED = 0.75  # of what is not attended, in the panel of the peak
_OVERLAY = 0.7  # share of the map over a grid, in the panel of the peak; the authors' has 0.8
_PEAK = 4.0  # times even: if no panel has as much, all fade less
_SPREAD = 1.5  # times even: below, no region stands out
_ATTENDED = "#d62728"
_COLOURS = {"original": "#1f77b4", "aligned": _ATTENDED}  # boxes before and after alignment
_FRAME, _LAST_FRAME = 700, 2000  # milliseconds
_FRAME_WIDTH = 3.2  # inches
_PALETTE = 128  # colours of an animation


class ShownFigure(Figure):
    """A figure that a notebook shows; pyplot, which is not used, would show a plain one."""

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG."""
        drawn = io.BytesIO()
        with _any_script():
            self.savefig(drawn, format="png", dpi=120)
        return drawn.getvalue()


class FigurePaths:
    """Paths of figures: one file, or files in a folder.

    In a folder a figure has the name of `ImageNames` and .png, in the subfolder of its image; a
    second image of that name gets the suffix "-2". Raises ConfigError for one file if there may be
    `many` images, for a file whose suffix is not a figure's, and for a file that would replace an
    image; UnwritableError for a figure in a folder that would.
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
        self._names = ImageNames()

    def for_image(self, named_image: NamedImage) -> Path:
        """Return the path for the figure of an image, and create its folder."""
        image, inside = named_image.path, named_image.relative or Path()
        folder = self._path.parent if self._file else self._path / inside.parent
        folder.mkdir(parents=True, exist_ok=True)
        # a name has at most 255 bytes, and the temporary one is longer than that of the figure
        stem = os.fsdecode(os.fsencode(self._names.of(image))[:_LONGEST_STEM])
        path, count = self._path if self._file else folder / f"{stem}.png", 1
        while not self._file and path in self._taken:
            count += 1
            path = folder / f"{stem}-{count}.png"
        if path.exists() and (path if self._file else folder).samefile(
            image if self._file else image.parent
        ):
            # one image of many is skipped
            raise (ConfigError if self._file else UnwritableError)(
                f"--figure would replace a file beside the image: {str(path)!r}; "
                "name another file or folder"
            )
        self._taken.add(path)
        return path


@dataclass(frozen=True)
class _Row:
    """A row of panels: (L, R) times even of its regions, its peak, and gates (L,) or None."""

    label: str
    regions: Regions
    times: NDArray[np.float32]
    peak: float
    gate: NDArray[np.float32] | None = None


def write_figure(
    path: Path,
    image: NamedImage,
    captioned: CaptionedImage,
    *,
    layer: int | None = None,
    head: int | None = None,
    style: Style = "panels",
    below: CaptionedImage | None = None,
    names: tuple[str, str] = ("first", "second"),
) -> None:
    """Draw the attention at each word of the top-scoring caption; the suffix sets the format.

    A GIF is an animation with a frame for each word. Other arguments are those of
    `attention_figure`. Raises A2Error for a captioner without attention.
    """
    if captioned.attention is None or (below is not None and below.attention is None):
        raise A2Error(
            "nothing to draw: this captioner has no attention to regions; leave --figure out"
        )
    pixels = read_image(image.path)[:, :, ::-1]
    drawn = io.BytesIO()
    with _any_script():
        if path.suffix.lower() == ANIMATED:
            _write_animation(drawn, pixels, captioned, captioned.attention.of(layer, head))
        else:
            figure = attention_figure(
                pixels, captioned, layer=layer, head=head, style=style, below=below, names=names
            )
            figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=120)
    write_durably(path, drawn.getvalue())


@contextmanager
def _any_script() -> Iterator[None]:
    """Ignore matplotlib's warning of a script that its font lacks: it draws a box for each word."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield


def attention_figure(
    pixels: NDArray[np.uint8],
    captioned: CaptionedImage,
    *,
    layer: int | None = None,
    head: int | None = None,
    style: Style = "panels",
    below: CaptionedImage | None = None,
    names: tuple[str, str] = ("first", "second"),
) -> Figure:
    """Draw the image with its caption, and below it two panels per word, six words per row.

    pixels: (H, W, 3) uint8 RGB.
    layer, head: counted from 1, draw that layer or head in place of the mean. Without alignment,
        and in boxes, there is one panel per word.
    below: the same caption with the attention of another captioner, in a second row (Xu et al.
        2015, Fig. 2).
    names: of both captioners, labels of the rows.
    Raises InputError for a captioner without attention.
    """
    attention = _attention(captioned, layer, head)
    caption = captioned.beams[0].caption
    words = caption.split()
    rows = _rows(captioned, attention, below, names)
    lines = 1 if style == "boxes" else len(rows)
    below_it = math.ceil(len(words) / _COLUMNS) * lines
    shown = _scaled_down(pixels)
    height = _PANEL * min(2.0, max(0.5, shown.shape[0] / shown.shape[1]))
    size = (_PANEL * _COLUMNS, 2 * height + 0.9 + below_it * (height + 0.25))
    figure = ShownFigure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(1 + below_it, _COLUMNS, height_ratios=[2.0] + [1.0] * below_it)
    whole = figure.add_subplot(grid[0, :])
    whole.imshow(shown)
    whole.set_axis_off()
    whole.set_title(textwrap.fill(caption, 90) or "(no words)", fontsize=11, parse_math=False)
    if style == "boxes":
        keys = [Patch(fill=False, edgecolor=_COLOURS[row.label], label=row.label) for row in rows]
        whole.legend(handles=keys, loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8)
    for position, word in enumerate(words):
        line, column = divmod(position, _COLUMNS)
        for number in range(lines):
            axes = figure.add_subplot(grid[1 + line * lines + number, column])
            axes.set_title("" if number else word, fontsize=9, parse_math=False)
            if style == "boxes":
                _show_boxes(axes, shown, rows, position)
                continue
            row = rows[number]
            _show_attention(axes, shown, row.regions, row.times[position], peak=row.peak)
            gate = [] if row.gate is None else [f"gate {row.gate[position]:.2f}"]
            axes.set_xlabel(", ".join([_in_words(row.times[position]), *gate]), fontsize=7)
            if column == 0 and lines > 1:
                axes.set_ylabel(row.label, fontsize=8)
    if words and style == "panels":
        figure.supxlabel(_legend(rows), fontsize=8)
    return figure


def _legend(rows: Sequence[_Row]) -> str:
    """Return how to read the panels."""
    is_lit = any(is_grid(row.regions) for row in rows)
    attended = "white is attended" if is_lit else "pale is not attended, framed is attended most"
    attended += "; × even: the largest share over an even one"
    has_gate = any(row.gate is not None for row in rows)
    return f"{attended}; gate: 1 keeps the original attention" if has_gate else attended


def word_figure(
    pixels: NDArray[np.uint8],
    captioned: CaptionedImage,
    position: int,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> Figure:
    """Draw the attention at one word, counted from 0, on the scale of the whole caption's figure.

    The original and the aligned attention are side by side; other arguments as in
    `attention_figure`.
    """
    rows = _rows(captioned, _attention(captioned, layer, head), None)
    shown = _scaled_down(pixels)
    side = 2 * _PANEL
    height = side * min(2.0, max(0.5, shown.shape[0] / shown.shape[1]))
    figure = ShownFigure(figsize=(side * len(rows), height + 0.6), layout="constrained")
    figure.suptitle(captioned.beams[0].caption.split()[position], parse_math=False)
    for number, row in enumerate(rows, start=1):
        axes = figure.add_subplot(1, len(rows), number)
        _show_attention(axes, shown, row.regions, row.times[position], peak=row.peak)
        axes.set_title(row.label, fontsize=9)
        axes.set_xlabel(_in_words(row.times[position]), fontsize=7)
    return figure


def _attention(captioned: CaptionedImage, layer: int | None, head: int | None) -> CaptionAttention:
    if captioned.attention is None:
        raise InputError("nothing to draw: this captioner has no attention to regions")
    return captioned.attention.of(layer, head)


def _rows(
    captioned: CaptionedImage,
    attention: CaptionAttention,
    below: CaptionedImage | None = None,
    names: tuple[str, str] = ("first", "second"),
) -> list[_Row]:
    """Return the rows of panels: original and aligned attention, or that of each captioner."""
    if below is not None and below.attention is not None:
        pairs = ((names[0], captioned, attention), (names[1], below, below.attention))
        return [
            _Row(name, of.regions, times, _peak(times))
            for name, of, used in pairs
            for times in [_times_even(used.aligned)]  # the original, without alignment
        ]
    kinds = {"original": _times_even(attention.original)}
    if attention.keep is not None:
        kinds["aligned"] = _times_even(attention.aligned)
    peak, gates = max(map(_peak, kinds.values())), {"aligned": attention.gate}
    return [
        _Row(name, captioned.regions, times, peak, gates.get(name)) for name, times in kinds.items()
    ]


def _peak(times: NDArray[np.float32]) -> float:
    return float(times.max(initial=1.0))


def _scaled_down(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return np.asarray(image)


def _write_animation(
    file: io.BytesIO,
    pixels: NDArray[np.uint8],
    captioned: CaptionedImage,
    attention: CaptionAttention,
) -> None:
    """Write a GIF: each word of the caption with the attention that predicts it, then the image."""
    shown = _scaled_down(pixels)
    row = _rows(captioned, attention)[-1]
    words = captioned.beams[0].caption.split()
    frames = [_frame(shown, row, words, position) for position in (*range(len(words)), None)]
    times = [_FRAME] * len(words) + [_LAST_FRAME]
    method = Image.Quantize.FASTOCTREE  # keeps the colour of few pixels
    first, *later_frames = (frame.quantize(_PALETTE, method) for frame in frames)
    first.save(file, "GIF", save_all=True, append_images=later_frames, duration=times, loop=0)


def _frame(
    shown: NDArray[np.uint8], row: _Row, words: Sequence[str], position: int | None
) -> Image.Image:
    """Draw the image with the attention at a word, which stands out in the caption below."""
    text = " ".join(words) or "–"  # a caption may be empty
    lines = textwrap.wrap(text, 36, break_long_words=False, break_on_hyphens=False)
    height = _FRAME_WIDTH * min(2.0, max(0.5, shown.shape[0] / shown.shape[1]))
    figure = Figure(figsize=(_FRAME_WIDTH, height + 0.1 + 0.25 * len(lines)))
    share = height / figure.get_figheight()
    axes = figure.add_axes((0, 1 - share, 1, share))
    if position is None:
        axes.imshow(shown)
    else:
        _show_attention(axes, shown, row.regions, row.times[position], peak=row.peak)
    axes.set_axis_off()
    # grey, as few coloured pixels would get no colour of the palette
    greys = ("black" if position in (number, None) else "0.75" for number in count())
    packed: list[Artist] = []
    for line in lines:
        style = {"size": 10, "parse_math": False}
        parts: list[Artist] = [
            TextArea(word, textprops={"color": next(greys), **style}) for word in line.split()
        ]
        packed.append(HPacker(children=parts, pad=0, sep=5))
    caption = AnchoredOffsetbox(
        "lower center",
        child=VPacker(children=packed, align="center", pad=0, sep=4),
        frameon=False,
        bbox_to_anchor=(0.5, 0),
        bbox_transform=figure.transFigure,
    )
    figure.add_artist(caption)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    drawn = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return Image.fromarray(drawn[:, :, :3].copy())


def _in_words(times: NDArray[np.float32]) -> str:
    """Return the caption below a panel."""
    return "spread evenly" if times.max() < _SPREAD else f"{times.max():.1f} × even"


def _contrast(times: NDArray[np.float32], peak: float) -> float:
    """Return 0 for attention that is spread evenly, to 1 for the peak of all panels."""
    if times.max() < _SPREAD:
        return 0.0
    return (float(times.max()) - 1) / (max(peak, min(_PEAK, len(times))) - 1)


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
    """Draw one panel.

    times: (R,), attention relative to an even one.
    peak: the largest of all panels.
    """
    if is_grid(regions):
        axes.imshow(_lit(shown, regions, times / peak, overlay=_OVERLAY * _contrast(times, peak)))
        axes.set(xticks=[], yticks=[])
        return
    height, width = shown.shape[:2]
    faded = np.zeros((height, width), np.float32)
    if times.max() >= _SPREAD:
        boxes = regions.boxes * ([width / regions.width, height / regions.height] * 2)
        depth = _FADED * _contrast(times, peak)
        weights = (times - 1).clip(0) / (peak - 1)
        faded = depth * (1 - _strength(boxes, weights, height=height, width=width))
        _add_box(axes, boxes[int(times.argmax())], _ATTENDED)
    axes.imshow((shown * (1 - faded[:, :, None]) + 255 * faded[:, :, None]).astype(np.uint8))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])


def _add_box(
    axes: Axes, box: NDArray[np.floating], colour: str, line_width: float | None = None
) -> None:
    x1, y1, x2, y2 = box
    frame = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, linewidth=line_width)
    frame.set_edgecolor(colour)
    axes.add_patch(frame)


def _show_boxes(axes: Axes, shown: NDArray[np.uint8], rows: Sequence[_Row], position: int) -> None:
    """Draw the image with the top-scoring region of each row; of two equal ones both are seen."""
    height, width = shown.shape[:2]
    axes.imshow(shown)
    for line_width, row in zip((3.0, 1.2), rows, strict=False):
        scale = [width / row.regions.width, height / row.regions.height] * 2
        box = row.regions.boxes[int(row.times[position].argmax())] * scale
        _add_box(axes, box, _COLOURS[row.label], line_width)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])


def _lit(
    shown: NDArray[np.uint8], regions: Regions, weights: NDArray[np.floating], *, overlay: float
) -> NDArray[np.uint8]:
    """Return the image, dark where the weights of the cells are 0 and white where they are 1.

    overlay: share of the weights in what is drawn.
    """
    (height, width), shape = shown.shape[:2], grid_shape(regions)
    assert shape is not None
    x, y = width / regions.width, height / regions.height
    corners = (*regions.boxes[0, :2], *regions.boxes[-1, 2:])  # a crop leaves a margin
    left, top, right, bottom = (
        round(float(value) * scale) for value, scale in zip(corners, (x, y, x, y), strict=True)
    )
    of_cells = Image.fromarray(weights.reshape(shape).astype(np.float32))
    smooth = of_cells.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    light = np.zeros((height, width, 1), np.float32)
    light[top:bottom, left:right, 0] = np.asarray(smooth).clip(0, 1)
    mixed: NDArray[np.uint8] = ((1 - overlay) * shown + overlay * 255 * light).astype(np.uint8)
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
