"""Boxes as shifts of other boxes (Girshick et al. 2014, appendix C), and back.

dx and dy count in sides of the anchor, dw and dh are logarithms of growth. Caffe counts an anchor's
last pixel, so that it is x2 - x1 + 1 wide, but not that of the box that it decodes to.
"""

import math

import torch
from torch import Tensor

LARGEST_GROWTH = math.log(1000 / 16)
"""Limit of dw and dh where the meta asks for one (detectron2/modeling/box_regression.py)."""


def decode_boxes(
    deltas: Tensor, anchors: Tensor, *, plus1: bool, limit: float = math.inf
) -> Tensor:
    """Apply dx, dy (in anchor sizes) and dw, dh (logarithms) to anchors.

    deltas, anchors: (N, 4) float32; limit: of dw and dh, none in caffe. Returns (N, 4) x1 y1 x2 y2.
    """
    sides = anchors[:, 2:] - anchors[:, :2] + plus1
    centres = anchors[:, :2] + 0.5 * sides + deltas[:, :2] * sides
    half = 0.5 * torch.exp(deltas[:, 2:].clamp(max=limit)) * sides
    return torch.cat([centres - half, centres + half], dim=1)


def encode_boxes(boxes: Tensor, anchors: Tensor, *, plus1: bool) -> Tensor:
    """The deltas that `decode_boxes` turns into these boxes.

    boxes, anchors: (N, 4) float32 x1 y1 x2 y2, neither empty. Returns (N, 4) dx dy dw dh.
    """
    sides = anchors[:, 2:] - anchors[:, :2] + plus1
    centres = anchors[:, :2] + 0.5 * sides
    shifts = (0.5 * (boxes[:, :2] + boxes[:, 2:]) - centres) / sides
    return torch.cat([shifts, torch.log((boxes[:, 2:] - boxes[:, :2]) / sides)], dim=1)
