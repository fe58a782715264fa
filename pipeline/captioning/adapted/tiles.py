"""The tiles that a processor of `transformers` makes of an image, and where they are in the image.

A processor resizes, crops, pads and cuts an image in ways of its own. None of them is repeated
here: the processor gets ramps, images whose brightness is the coordinate of each pixel, and a line
through the values that come out maps pixels of each tile to pixels of the image.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

_WHITE = 255
_BENT = 0.05
"""Share of the image by which a coordinate may be off the line."""
_SNAP = 0.01
"""Share of the image within which an edge of a tile is that of the image."""

Axis = tuple[float, float]
"""Coordinate of pixel 0's outer edge, and pixels of the image per pixel of the tile."""
Process = Callable[[Sequence[Image.Image]], Mapping[str, Tensor]]
"""Processor of images of one size."""


@dataclass(frozen=True)
class Tile:
    """Pixels of a tile, (height, width), and its axes; None for a tile of padding alone."""

    height: int
    width: int
    axes: tuple[Axis, Axis] | None  # y, x

    def in_image(self, y: NDArray[np.floating], x: NDArray[np.floating]) -> "Edges | None":
        """Return coordinates in the image of coordinates in the tile."""
        if self.axes is None:
            return None
        (y_first, y_step), (x_first, x_step) = self.axes
        return y_first + y_step * y, x_first + x_step * x


Edges = tuple[NDArray[np.floating], NDArray[np.floating]]


@dataclass(frozen=True)
class Ramps:
    """What a processor makes of ramps of a size: tiles (4, H, W), of black, white, x and y ramp.

    tiles: none where the processor makes no pixels. inputs: all that the processor returned.
    """

    width: int
    height: int
    tiles: Sequence[NDArray[np.float32]]
    inputs: Mapping[str, Tensor]


def process_ramps(process: Process, config: Any, *, width: int, height: int) -> Ramps:
    """Give ramps of this size to a processor; config: the model's."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    x, y = x / max(1, width - 1), y / max(1, height - 1)
    ramps = [np.zeros_like(x), np.ones_like(x), x, y]
    inputs = process([_grey(ramp) for ramp in ramps])
    values = inputs.get("pixel_values")
    if values is None or len(values) % len(ramps):
        return Ramps(width, height, (), inputs)
    pixels = values.float().cpu().numpy().reshape(len(ramps), -1, *values.shape[1:])
    if values.ndim == 2 and "image_grid_thw" in inputs:
        pixels = _unpatched(pixels, inputs["image_grid_thw"][0].tolist(), config.vision_config)
    elif values.ndim == 5:  # (images, tiles, 3, H, W)
        pixels = pixels[:, 0]
    elif values.ndim != 4:
        return Ramps(width, height, (), inputs)
    return Ramps(width, height, list(pixels[:, :, 0].swapaxes(0, 1)), inputs)


def _grey(ramp: NDArray[np.float64]) -> Image.Image:
    levels = np.round(_WHITE * ramp).astype(np.uint8)
    return Image.fromarray(np.repeat(levels[:, :, None], 3, axis=2))


def _unpatched(
    patches: NDArray[np.float32], grid: Sequence[int], vision: Any
) -> NDArray[np.float32]:
    """Return Qwen-VL's patches (4, n, 3 * t * p * p) as one tile, (4, 1, 1, H, W).

    They are in the order of the merged tokens: m x m patches of each.
    """
    (_, rows, columns), side, merge = grid, vision.patch_size, vision.spatial_merge_size
    first = patches.reshape(len(patches), rows * columns, 3, -1, side, side)[:, :, 0, 0]
    blocks = first.reshape(-1, rows // merge, columns // merge, merge, merge, side, side)
    whole = blocks.transpose(0, 1, 3, 5, 2, 4, 6)  # rows of blocks, of patches, of pixels
    return whole.reshape(-1, 1, 1, rows * side, columns * side)


def locate(ramps: NDArray[np.float32], *, width: int, height: int) -> Tile:
    """Return where a tile is in the image; ramps: (4, H, W), of `Ramps`."""
    black, white, x, y = ramps.astype(np.float64)
    span = white - black
    is_inside = np.abs(span) > 0.5 * max(np.abs(span).max(), np.finfo(np.float32).tiny)
    divisor = np.where(is_inside, span, 1)
    of_y = _line((y - black) / divisor, is_inside, 1, height)
    of_x = _line((x - black) / divisor, is_inside, 0, width)
    rows, columns = black.shape
    return Tile(rows, columns, None if of_y is None or of_x is None else (of_y, of_x))


def _line(
    shares: NDArray[np.float64], is_inside: NDArray[np.bool_], axis: int, size: int
) -> Axis | None:
    """Fit coordinates of the image, (H, W) shares of its size, to those of the tile.

    axis: that over which coordinates are equal. Returns None where no part of the image is inside,
    or where the processor does something else to it than resize, crop, pad and cut.
    """
    counts = is_inside.sum(axis=axis)
    at = np.flatnonzero(counts)
    if not len(at):
        return None
    first, last = float(at[0]), float(at[-1] + 1)
    if len(at) < 4 or size < 4:  # too few points for a line: take the part inside for the whole
        step = size / (last - first)
        return -first * step, step
    means = np.where(is_inside, shares, 0).sum(axis=axis)[at] / counts[at]
    # resampling bends a ramp at the edges of an image
    inner = slice(1, -1)
    points, values = at + 0.5, means * (size - 1) + 0.5
    step, start = np.polyfit(points[inner], values[inner], 1)
    if np.abs(start + step * points - values).max() > _BENT * size + abs(step) or step <= 0:
        return None
    low, high = start + step * first, start + step * last
    low = 0.0 if abs(low) < _SNAP * size else low
    high = float(size) if abs(high - size) < _SNAP * size else high
    step = (high - low) / (last - first)
    return float(low - first * step), float(step)
