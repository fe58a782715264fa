"""Where the image's tokens of a vision-language model are in the image, as cells of a grid.

One rule serves most classes: N tokens of T tiles are the cells of T grids, row by row, with as
square cells as the tiles allow; merged patches, pixel shuffles and pooling make larger cells, and
class tokens come first. Models that pack tiles (LLaVA-NeXT, LLaVA-OneVision) pack coordinates too:
their own function shows which cells are left and which tokens end a row.
"""

import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.regions import cell_boxes
from a2cap.pipeline.captioning.adapted.tiles import Ramps, locate

_MOST_EXTRA = 2
"""States of an encoder before those of its patches: DeiT's class and distillation."""
_STRETCHED = 1.25
"""Times by which a cell may be longer than wide."""

Values = NDArray[np.float32]
Edges = NDArray[np.floating]


class NoGrid(Exception):
    """Raised where tokens are not the cells of grids; states why."""


@dataclass(frozen=True)
class _Cells:
    """Cells of a tile: token first + row * (columns + ends) + column; y, x: edges in the image."""

    first: int
    ends: int  # tokens that end a row
    y: Edges  # (rows + 1,)
    x: Edges  # (columns + 1,)


@dataclass(frozen=True)
class TokenMap:
    """The n x m cells of a grid over the image, and the share of each token in each of them.

    tokens: N; y, x: edges of the grid's cells in pixels of the image.
    """

    tokens: int
    y: Edges
    x: Edges
    cells: tuple[_Cells, ...]

    @property
    def boxes(self) -> NDArray[np.float32]:
        """Boxes of the cells, (n * m, 4) x1 y1 x2 y2, row by row."""
        area = (self.x[0], self.y[0], self.x[-1], self.y[-1])
        return cell_boxes((len(self.y) - 1, len(self.x) - 1), area)

    def attention(self, attention: CaptionAttention) -> CaptionAttention:
        """Return the attention to the cells of attention to the tokens, (..., N) -> (..., n * m).

        That to padding and to tokens that end a row is left out.
        """
        spread = attention.map(self.spread, lambda gate: gate)
        if spread.keep is None:
            return spread
        # a mask is not a share: take its mean over the tokens of a cell
        covered = self.spread(np.ones((1, self.tokens), np.float32)).clip(min=1e-6)

        def mean(part: CaptionAttention) -> CaptionAttention:
            layers = tuple(map(mean, part.layers))
            return replace(
                part, keep=None if part.keep is None else part.keep / covered, layers=layers
            )

        return mean(spread)

    def spread(self, values: Values) -> Values:
        """Spread values of tokens over the cells that they cover."""
        total = np.zeros((*values.shape[:-1], len(self.y) - 1, len(self.x) - 1), np.float32)
        for part in self.cells:
            rows, columns = len(part.y) - 1, len(part.x) - 1
            width = columns + part.ends
            part_values = values[..., part.first : part.first + rows * width]
            part_values = part_values.reshape(*values.shape[:-1], rows, width)[..., :columns]
            total += _overlap(part.y, self.y).T @ part_values @ _overlap(part.x, self.x)
        return total.reshape(*values.shape[:-1], -1)


def _overlap(cells: Edges, target: Edges) -> Values:
    """Return the share of each cell in each target cell, (cells, target cells)."""
    low = np.maximum(cells[:-1, None], target[None, :-1])
    high = np.minimum(cells[1:, None], target[None, 1:])
    shares = (high - low).clip(min=0) / np.diff(cells)[:, None]
    # rounding: a cell that is its target has all of it
    return np.where(shares > 1 - 1e-6, 1, np.where(shares < 1e-6, 0, shares)).astype(np.float32)


def map_tokens(model: Any, ramps: Ramps, tokens: int) -> TokenMap:
    """Return where the tokens of an image are; raise NoGrid if they are not cells of its tiles.

    ramps: of the image's size.
    """
    name = type(model).__name__
    if not ramps.tiles:
        raise NoGrid(f"the processor of {name} gives no pixel_values of tiles")
    packing = getattr(getattr(model, "model", None), "pack_image_features", None)
    if packing is not None:
        cells = list(_packed(model, packing, ramps, tokens))
    else:
        cells = list(_tiled(model.config, ramps, ramps.tiles, tokens))
    if not cells:
        raise NoGrid(
            f"{tokens} tokens of {name} are not the cells of {len(ramps.tiles)} tiles of "
            f"{ramps.tiles[0].shape[1]} x {ramps.tiles[0].shape[2]} pixels"
        )
    y = _covering([part.y for part in cells], ramps.height)
    x = _covering([part.x for part in cells], ramps.width)
    return TokenMap(tokens, y, x, tuple(cells))


def _covering(axes: Sequence[Edges], size: int) -> Edges:
    """Return edges of even cells, as small as the smallest ones, over all that is in the image."""
    low = max(0.0, min(float(edges[0]) for edges in axes))
    high = min(float(size), max(float(edges[-1]) for edges in axes))
    cell = min(float(np.diff(edges).min()) for edges in axes)
    return np.linspace(low, high, max(1, round((high - low) / cell)) + 1)


def _tiled(config: Any, ramps: Ramps, tiles: Sequence[Values], tokens: int) -> Iterator[_Cells]:
    """Yield the cells of each tile that is not padding alone."""
    _, rows_of_pixels, columns_of_pixels = tiles[0].shape
    extra, rows, columns = _grid(tokens, len(tiles), rows_of_pixels / columns_of_pixels)
    if not rows:
        return
    patch = _patch(config)
    y = np.arange(rows + 1) * _step(rows_of_pixels, rows, patch)
    x = np.arange(columns + 1) * _step(columns_of_pixels, columns, patch)
    for number, tile in enumerate(tiles):
        edges = locate(tile, width=ramps.width, height=ramps.height).in_image(y, x)
        if edges is not None:
            yield _Cells(extra + number * rows * columns, 0, *edges)


def _grid(tokens: int, tiles: int, aspect: float) -> tuple[int, int, int]:
    """Return the tokens before the cells, and the rows and columns of each tile; 0 rows if none.

    aspect: height of a tile by its width.
    """
    for extra in range(_MOST_EXTRA + 1 if tiles == 1 else 1):
        each, rest = divmod(tokens - extra, tiles)
        rows = max(1, round(math.sqrt(max(0, each) * aspect)))
        columns = each // rows
        stretched = columns and aspect * columns / rows
        is_even = not rest and rows * columns == each
        if is_even and 1 / _STRETCHED < stretched < _STRETCHED and each > 1:
            return extra, rows, columns
    return 0, 0, 0


def _patch(config: Any) -> int:
    """Return the side of a patch in pixels, 0 if it is not known."""
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None)
    side = getattr(vision, "patch_size", 0) or 0
    side = side[0] if isinstance(side, list | tuple) else side
    return side if isinstance(side, int) else 0


def _step(pixels: int, cells: int, patch: int) -> float:
    """Return the pixels of a cell: whole patches, where the last pixels may be left out."""
    patches = pixels // patch if patch else 0
    return patch * patches / cells if patches and patches % cells == 0 else pixels / cells


def _packed(model: Any, packing: Any, ramps: Ramps, tokens: int) -> Iterator[_Cells]:
    """Yield the cells of the base tile, and of the further ones as one canvas."""
    config, size = model.config, ramps.inputs["image_sizes"][0].tolist()
    module, side = sys.modules[type(model).__module__], config.vision_config.image_size
    patches = side // config.vision_config.patch_size
    shape = module.get_anyres_image_grid_shape(size, config.image_grid_pinpoints, side)
    down, across = shape
    if len(ramps.tiles) != 1 + down * across:
        return
    places = _pack_coordinates(packing, patches, down, across, size, config)
    base, rest = patches**2, places[patches**2 :]
    is_end = np.isnan(rest[:, 0])
    rows = int(is_end.sum())
    if len(places) != tokens or not rows or len(rest) % rows:
        return
    yield from _tiled(config, ramps, ramps.tiles[:1], base)
    # (down * across, 4, H, W) -> one canvas (4, down * H, across * W)
    tiles = np.stack(ramps.tiles[1:]).reshape(down, across, *ramps.tiles[0].shape)
    canvas = tiles.transpose(2, 0, 3, 1, 4).reshape(4, down * tiles.shape[3], -1)
    cells = rest.reshape(rows, -1, 2)[:, :-1]
    scale = side / patches
    y, x = _edges(cells[:, 0, 0]) * scale, _edges(cells[0, :, 1]) * scale
    edges = locate(canvas, width=ramps.width, height=ramps.height).in_image(y, x)
    if edges is not None:
        yield _Cells(base, 1, *edges)


def _pack_coordinates(
    packing: Any, patches: int, down: int, across: int, size: Sequence[int], config: Any
) -> NDArray[np.float64]:
    """Return (row, column) of each packed token on the canvas, NaN of a token that ends a row."""
    y, x = np.mgrid[: down * patches, : across * patches] + 0.5
    canvas = np.stack([y, x], -1).reshape(down, patches, across, patches, 2)
    tiles = canvas.transpose(0, 2, 1, 3, 4).reshape(down * across, patches**2, 2)
    features = torch.from_numpy(np.concatenate([tiles[:1], tiles]))
    parts = {
        "image_newline": torch.full((2,), torch.nan, dtype=features.dtype),
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": getattr(config, "vision_aspect_ratio", None),
    }
    options = {name: parts[name] for name in inspect.signature(packing).parameters if name in parts}
    packed, _ = packing([features], torch.tensor([list(size)]), **options)
    return np.asarray(packed[0], np.float64)


def _edges(centres: NDArray[np.floating]) -> Edges:
    """Return the edges of even cells."""
    first, last = float(centres[0]), float(centres[-1])
    step = (last - first) / max(1, len(centres) - 1) or 1.0
    return np.asarray(first + step * (np.arange(len(centres) + 1) - 0.5))
