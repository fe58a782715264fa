"""Intersection over union (IoU) of boxes."""

import numpy as np
from numpy.typing import NDArray


def box_iou(boxes: NDArray[np.floating], other_boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the IoU of all pairs; (N, 4) and (M, 4) x1 y1 x2 y2 -> (N, M) in [0, 1].

    The IoU of two boxes without area is 0.
    """
    # float64: float32 areas of large boxes are inexact. extract/detector/region_selection.py has
    # its own IoU, because caffe counts a box's last pixel.
    a, b = boxes[:, None].astype(float), other_boxes[None].astype(float)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = sides.clip(min=0).prod(axis=-1)
    areas = [(corners[..., 2:] - corners[..., :2]).prod(axis=-1) for corners in (a, b)]
    union = areas[0] + areas[1] - shared
    shares: NDArray[np.float64] = np.divide(
        shared, union, out=np.zeros_like(shared), where=union > 0
    )
    return shares
