"""Compiled operators of torchvision, with a one-line error where they cannot be loaded."""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from a2cap.data.errors import A2Error
from a2cap.extract.detector.roi_pool import FEWEST, pool_from_tables


def nms(boxes: Tensor, scores: Tensor, *, threshold: float) -> Tensor:
    """Drop boxes that overlap a higher-scoring one (greedy non-maximum suppression).

    boxes: (N, 4) float32, continuous edges; scores: (N,) float32; threshold: largest overlap that
    is kept. Returns the kept indices by falling score.
    """
    return cast(Tensor, _compiled().nms(boxes, scores, threshold))


def roi_pool(maps: Tensor, rois: Tensor, *, size: int, scale: float) -> Tensor:
    """Pool regions by the maximum in each cell of a size x size grid (Girshick 2015).

    maps: (B, C, h, w) float32; rois: (K, 5) float32, image index in rising order, x1 y1 x2 y2 in
    pixels; scale: cells of a map per pixel. Returns (K, C, size, size).
    """
    needs_gradient = maps.requires_grad and torch.is_grad_enabled()
    # torchvision's kernel runs on one CPU thread, one channel at a time
    if maps.device.type != "cpu" or needs_gradient or len(rois) < FEWEST * len(maps):
        return cast(Tensor, _compiled().roi_pool(maps, rois, scale, size, size)[0])
    parts = torch.split(
        rois[:, 1:], torch.bincount(rois[:, 0].long(), minlength=len(maps)).tolist()
    )
    pooled = [
        pool_from_tables(cells, part, size=size, scale=scale)
        for cells, part in zip(maps, parts, strict=True)
        if len(part)
    ]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled)


def roi_align(maps: Tensor, rois: Tensor, *, size: int, scale: float) -> Tensor:
    """Pool regions by the mean of bilinear samples in each cell (detectron2's ROIAlignV2).

    Arguments and result as for `roi_pool`; corners are aligned, and a cell has as many samples as
    it covers map cells.
    """
    align = torchvision_module("ops").roi_align
    return cast(Tensor, align(maps, rois, size, scale, sampling_ratio=0, aligned=True))


def _compiled() -> Any:
    """Return the compiled operators, without importing torchvision if no gradient is needed."""
    # Importing torchvision loads torch's compiler and takes as long as importing torch; the library
    # alone takes milliseconds. Gradients are registered in torchvision's Python code.
    if not torch.is_grad_enabled() and "torchvision" not in sys.modules and _load_library():
        return torch.ops.torchvision
    torchvision_module("ops")
    return torch.ops.torchvision


@cache
def _load_library() -> bool:
    """Return whether the library loads without torchvision, whose import gives the reason."""
    try:
        spec = find_spec("torchvision")
        folder = Path(next(iter((spec and spec.submodule_search_locations) or ())))
        torch.ops.load_library(str(next(folder.glob("_C*.so"))))  # type: ignore[no-untyped-call]
    except (ImportError, RuntimeError, OSError, StopIteration):
        return False
    return all(hasattr(torch.ops.torchvision, name) for name in ("nms", "roi_pool"))


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
