"""Anchor boxes of the proposal network (bottom-up-attention @514e561, lib/rpn), and box deltas.

Coordinates of anchors are pixels of the scaled image, relative to a cell's corner. Deltas (Girshick
et al. 2014, appendix C): dx and dy are in sides of the anchor, dw and dh are logarithms of growth.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.extract.detector.resnet import STRIDE

RATIOS = (0.5, 1.0, 2.0)
"""Height over width."""

MAX_LOG_GROWTH = math.log(1000 / 16)
"""Limit of dw and dh if the meta sets one (detectron2/modeling/box_regression.py)."""


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


def decode_boxes(
    deltas: Tensor, anchors: Tensor, *, plus1: bool, limit: float = math.inf
) -> Tensor:
    """Move anchors by dx, dy (in anchor sizes) and scale them by dw, dh (logarithms).

    deltas, anchors: (N, 4) float32.
    limit: of dw and dh, none in caffe.
    Returns (N, 4) x1 y1 x2 y2.
    """
    # Caffe counts the last pixel of an anchor, but not that of the decoded box.
    sides = anchors[:, 2:] - anchors[:, :2] + plus1
    centres = anchors[:, :2] + 0.5 * sides + deltas[:, :2] * sides
    half = 0.5 * torch.exp(deltas[:, 2:].clamp(max=limit)) * sides
    return torch.cat([centres - half, centres + half], dim=1)


def encode_boxes(boxes: Tensor, anchors: Tensor, *, plus1: bool) -> Tensor:
    """Return the deltas that `decode_boxes` turns into these boxes.

    boxes, anchors: (N, 4) float32 x1 y1 x2 y2, neither empty. Returns (N, 4) dx dy dw dh.
    """
    sides = anchors[:, 2:] - anchors[:, :2] + plus1
    centres = anchors[:, :2] + 0.5 * sides
    moved = (0.5 * (boxes[:, :2] + boxes[:, 2:]) - centres) / sides
    return torch.cat([moved, torch.log((boxes[:, 2:] - boxes[:, :2]) / sides)], dim=1)
