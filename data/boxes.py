"""Intersection over union (IoU) of boxes."""

import numpy as np
from numpy.typing import NDArray


def box_iou(boxes: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the IoU of all pairs; (N, 4) and (M, 4) x1 y1 x2 y2 -> (N, M) in [0, 1].

    The IoU of two boxes without area is 0.
    """
    # float64: float32 areas of large boxes are inexact. extract/detector/region_selection.py has
    # its own IoU, because caffe counts a box's last pixel.
    one, other = boxes[:, None].astype(float), others[None].astype(float)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = sides.clip(min=0).prod(axis=-1)
    areas = [(found[..., 2:] - found[..., :2]).prod(axis=-1) for found in (one, other)]
    union = areas[0] + areas[1] - shared
    shares: NDArray[np.float64] = np.divide(
        shared, union, out=np.zeros_like(shared), where=union > 0
    )
    return shares
