"""Box deltas relative to anchors (Girshick et al. 2014, appendix C): decoding and encoding.

dx and dy are in sides of the anchor, dw and dh are logarithms of growth.
"""

import math

import torch
from torch import Tensor

MAX_LOG_GROWTH = math.log(1000 / 16)
"""Limit of dw and dh if the meta sets one (detectron2/modeling/box_regression.py)."""


def decode_boxes(
    deltas: Tensor, anchors: Tensor, *, plus1: bool, limit: float = math.inf
) -> Tensor:
    """Move anchors by dx, dy (in anchor sizes) and scale them by dw, dh (logarithms).

    deltas, anchors: (N, 4) float32; limit: of dw and dh, none in caffe. Returns (N, 4) x1 y1 x2 y2.
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
