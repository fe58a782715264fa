"""RoIPool and RoIAlign: torchvision's, or faster ones on a CPU.

Without RoIAlign, detection on a CPU does not import torchvision, which takes as long as torch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from a2cap.extract.detector.pooled_cells import FEWEST, PooledCells, pool_from_tables
from a2cap.extract.torchvision_module import torchvision_module


def roi_pool(
    maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool regions by the maximum in each cell of a size x size grid (Girshick 2015).

    maps: (B, C, h, w) float32.
    rois: (K, 5) float32, image index in rising order, x1 y1 x2 y2 in pixels.
    scale: cells of a map per pixel.
    Yields (k, C, size, size) in order, k at most chunk.
    """
    # torchvision's kernel runs on one CPU thread, one channel at a time
    if can_use_tables(maps) and len(rois) >= FEWEST * len(maps):
        for cells in pooled_cells(maps, rois, size=size, scale=scale):
            yield from cells.regions(chunk)
        return
    pool = torchvision_module("ops").roi_pool
    yield from (pool(maps, part, size, scale) for part in torch.split(rois, chunk))


def can_use_tables(maps: Tensor) -> bool:
    """Return whether `pooled_cells` takes these maps: on a CPU, and without gradients."""
    return maps.device.type == "cpu" and not (maps.requires_grad and torch.is_grad_enabled())


def pooled_cells(maps: Tensor, rois: Tensor, *, size: int, scale: float) -> Iterator[PooledCells]:
    """Yield the pooled regions of each map that has any; arguments as of `roi_pool`."""
    counts = torch.bincount(rois[:, 0].long(), minlength=len(maps)).tolist()
    for cells, part in zip(maps, torch.split(rois[:, 1:], counts), strict=True):
        if len(part):
            yield pool_from_tables(cells, part, size=size, scale=scale)


def roi_align(
    maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool regions by the mean of bilinear samples in each cell (detectron2's ROIAlignV2).

    Arguments and result as for `roi_pool`; corners are aligned, and a cell has as many samples as
    it covers map cells.
    """
    align = torchvision_module("ops").roi_align
    for part in torch.split(rois, chunk):
        yield align(maps, part, size, scale, sampling_ratio=0, aligned=True)
