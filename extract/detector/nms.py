"""Non-maximum suppression: torchvision's, or on a CPU one that does not import it."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from a2cap.extract.torchvision_module import torchvision_module


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
