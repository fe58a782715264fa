"""Anchor boxes of the proposal network (bottom-up-attention @514e561, lib/rpn).

Coordinates are pixels of the scaled image, relative to a cell's corner.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.extract.detector.resnet import STRIDE

RATIOS = (0.5, 1.0, 2.0)
"""Height over width."""


def caffe_anchors() -> NDArray[np.float64]:
    """Return the anchors of the published model: (12, 4) x1 y1 x2 y2, ratio by ratio."""
    area = STRIDE * STRIDE
    centre = (STRIDE - 1) / 2
    boxes = []
    # Caffe's anchors are integers that include their last pixel: a side is x2 - x1 + 1 long.
    for ratio in RATIOS:
        width = np.round(np.sqrt(area / ratio))
        height = np.round(width * ratio)
        for scale in (4, 8, 16, 32):
            half = (np.array([width, height]) * scale - 1) / 2
            boxes.append(np.concatenate([centre - half, centre + half]))
    return np.stack(boxes)


def detectron2_anchors(
    *, sizes: Sequence[float], ratios: Sequence[float] = RATIOS, centre: float = 0
) -> NDArray[np.float64]:
    """Return anchors in detectron2's form: (sizes * ratios, 4), size by size, not rounded.

    sizes: square roots of the areas, in pixels; ratios: height over width; centre: x and y of all,
    0 in detectron2. Edges are continuous: a side is x2 - x1 long.
    """
    boxes = []
    for size in sizes:
        for ratio in ratios:
            width = size / np.sqrt(ratio)
            half = np.array([width, width * ratio]) / 2
            boxes.append(np.concatenate([centre - half, centre + half]))
    return np.stack(boxes)


def anchor_grid(anchors: Tensor, *, height: int, width: int) -> Tensor:
    """Return the anchors at each cell of a feature map.

    anchors: (A, 4) float32; height, width in cells. Returns (height * width * A, 4), row by row,
    the anchors of one cell together.
    """
    y, x = torch.meshgrid(
        torch.arange(height, device=anchors.device) * STRIDE,
        torch.arange(width, device=anchors.device) * STRIDE,
        indexing="ij",
    )
    shifts = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
    return (shifts + anchors).reshape(-1, 4)
