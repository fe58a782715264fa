"""Operators on boxes and regions; torchvision's, or faster ones on a CPU.

Without RoIAlign, detection on a CPU does not import torchvision, which takes as long as torch.
"""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import cast

import numpy as np
import torch
from torch import Tensor

from a2cap.data.errors import A2Error
from a2cap.extract.detector.roi_pool import FEWEST, PooledCells, pool_from_tables


def nms(boxes: Tensor, scores: Tensor, *, threshold: float, most: int) -> Tensor:
    """Drop boxes that overlap a higher-scoring one (greedy non-maximum suppression).

    boxes: (N, 4) float32, continuous edges; scores: (N,) float32; threshold: largest overlap that
    is kept. Returns at most `most` kept indices by falling score.
    """
    if boxes.device.type != "cpu":
        return cast(Tensor, torchvision_module("ops").nms(boxes, scores, threshold)[:most])
    order = scores.argsort(descending=True, stable=True)
    x1, y1, x2, y2 = boxes[order].numpy().T.copy()
    areas = (x2 - x1) * (y2 - y1)
    limit = np.float64(threshold)  # compared in float64, as torchvision does
    kept: list[np.int64] = []
    left = np.arange(len(order))
    while len(left) and len(kept) < most:
        best, left = left[0], left[1:]
        kept.append(best)
        width = np.minimum(x2[best], x2[left]) - np.maximum(x1[best], x1[left])
        height = np.minimum(y2[best], y2[left]) - np.maximum(y1[best], y1[left])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(invalid="ignore"):  # boxes of no area overlap none
            left = left[~(shared / (areas[best] + areas[left] - shared) > limit)]
    return order[torch.tensor(kept, dtype=torch.int64)]


def roi_pool(
    maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool regions by the maximum in each cell of a size x size grid (Girshick 2015).

    maps: (B, C, h, w) float32; rois: (K, 5) float32, image index in rising order, x1 y1 x2 y2 in
    pixels; scale: cells of a map per pixel. Yields (k, C, size, size) in order, k at most chunk.
    """
    # torchvision's kernel runs on one CPU thread, one channel at a time
    if can_use_tables(maps) and len(rois) >= FEWEST * len(maps):
        for cells in pooled_cells(maps, rois, size=size, scale=scale):
            yield from cells.regions(chunk)
        return
    pool = torchvision_module("ops").roi_pool
    yield from (pool(maps, some, size, scale) for some in torch.split(rois, chunk))


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
    for some in torch.split(rois, chunk):
        yield align(maps, some, size, scale, sampling_ratio=0, aligned=True)


def torchvision_module(name: str) -> ModuleType:
    """Import a module of torchvision by its name there, such as "ops".

    Raises A2Error where the builds differ, one for the CPU and one for CUDA.
    """
    try:
        return import_module(f"torchvision.{name}")
    except (ImportError, RuntimeError, AttributeError) as error:
        raise A2Error(
            f"torchvision does not fit torch {torch.__version__}: {error}; "
            "install both from the same index, both for CPU or both for the same CUDA"
        ) from error
