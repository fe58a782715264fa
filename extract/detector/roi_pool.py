"""RoIPool (Girshick 2015) of many regions of one map, on a CPU without torchvision's kernel.

A cell of a region is a rectangle of few map cells. For each size of such a rectangle, a table holds
the maximum at every position; a region then is one gather of its rectangles. The results equal
torchvision's bit for bit, in a tenth of the time for 300 regions, with channels last.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

FEWEST = 32
"""Regions of a map from which building the tables pays."""


def pool_from_tables(
    cells: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool regions by the maximum in each cell of a size x size grid, chunk regions at a time.

    cells: (C, h, w) float32; rois: (K, 4) float32 x1 y1 x2 y2 in pixels; scale: cells per pixel.
    Yields (k, C, size, size), channels last in memory.
    """
    channels, height, width = cells.shape
    limits = torch.tensor([width, height], dtype=torch.float32)
    first, lengths = _bins(rois * scale, size=size, limits=limits)
    columns, rows = lengths.amax(dim=(0, 1)).clamp(min=1).tolist()
    flat = cells.new_empty(rows * columns * height * width + 1, channels)
    flat[-1] = 0  # the value of a cell beyond the map
    tables = flat[:-1].view(rows, columns, height, width, channels)
    tables[0, 0] = cells.permute(1, 2, 0)
    for row in range(rows):
        # rows and columns at the end of a table, where a rectangle would not fit, stay unused
        high = height - row
        if row:
            above, below = tables[row - 1, 0, :high], tables[0, 0, row:]
            torch.maximum(above, below, out=tables[row, 0, :high])
        for column in range(1, columns):
            wide = width - column
            left, right = tables[row, column - 1, :high, :wide], tables[row, 0, :high, column:]
            torch.maximum(left, right, out=tables[row, column, :high, :wide])
    (x, y), (across, down) = first.unbind(dim=2), lengths.unbind(dim=2)  # (K, size) each
    lines = ((down - 1) * columns * height + y)[:, :, None] * width
    index = lines + ((across - 1) * height * width + x)[:, None, :]
    is_empty = (down < 1)[:, :, None] | (across < 1)[:, None, :]
    # lazily: memory for all regions at once is new to the process and takes longer than the gather
    for some in torch.split(index.masked_fill_(is_empty, len(flat) - 1), chunk):
        chosen = flat.index_select(0, some.flatten())
        yield chosen.view(len(some), size, size, channels).permute(0, 3, 1, 2)


def _bins(rois: Tensor, *, size: int, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first map cell of each bin and their number, (K, size, 2) int64 of x and y."""
    # float32 throughout, and halves rounded away from zero, as in the kernels of caffe and
    # torchvision: another order of operations moves some edges by a cell
    whole = rois.trunc()
    edges = whole + ((rois - whole).abs() >= 0.5) * rois.sign()
    start, end = edges[:, None, :2], edges[:, None, 2:]
    side = (end - start + 1).clamp(min=1) / size
    steps = torch.arange(size + 1, dtype=torch.float32)[None, :, None]
    first = ((steps[:, :-1] * side).floor() + start).clamp(min=0).minimum(limits)
    last = ((steps[:, 1:] * side).ceil() + start).clamp(min=0).minimum(limits)
    return first.long(), (last - first).long()
