"""Greedy non-maximum suppression: exact, or in rounds for which a GPU is not waited for."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.torchvision_module import torchvision_module

ROUNDS = 32
"""Rounds of `nms_in_rounds`. 6,000 boxes of six detections of COCO images took 8 to 10."""


def suppress(
    boxes: Tensor, scores: Tensor, *, threshold: float, most: int, meta: DetectorMeta
) -> Tensor:
    """Run `nms` by the pixel convention of the meta.

    boxes: (N, 4) as decoded.
    scores: (N,).
    """
    return nms(widened(boxes, meta), scores, threshold=threshold, most=most)


def widened(boxes: Tensor, meta: DetectorMeta) -> Tensor:
    """Return the boxes whose overlap as continuous boxes is theirs by the meta, (N, 4)."""
    # overlap of boxes that include their last pixel = overlap of continuous boxes one wider
    return torch.cat([boxes[:, :2], boxes[:, 2:] + int(meta.nms_plus1)], dim=1)


def nms(boxes: Tensor, scores: Tensor, *, threshold: float, most: int) -> Tensor:
    """Drop boxes that overlap a higher-scoring one (greedy non-maximum suppression).

    By torchvision, or on a CPU without importing it.
    boxes: (N, 4) float32, continuous edges.
    scores: (N,) float32.
    threshold: largest overlap that is kept.
    Returns at most `most` kept indices by falling score.
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


def nms_in_rounds(
    boxes: Tensor, usable: Tensor, *, threshold: float, rounds: int = ROUNDS
) -> tuple[Tensor, Tensor]:
    """Drop boxes as `nms` does, in tensors whose shapes depend on no value.

    boxes: (N, 4) float32, continuous edges, by falling score.
    usable: (N,) bool, False for boxes to ignore.
    threshold: as of `nms`.
    Returns which are kept, (N,) bool, and whether these are final, () bool: more rounds would not
    change them.
    """
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    areas = (x2 - x1) * (y2 - y1)
    width = torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)
    height = torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)
    shared = width.clamp_(min=0) * height.clamp_(min=0)  # (N, N)
    overlapping = shared / (areas[:, None] + areas - shared) > threshold
    # A box is kept if no kept box before it overlaps it. Begun with all boxes, each round settles
    # at least one more link of every chain of overlapping boxes. The products count 0s and 1s, of
    # which only a sum of none is 0 in bfloat16.
    before = overlapping.triu_(1).bfloat16()
    kept, settled = usable, usable
    for _ in range(rounds):
        settled = kept
        kept = usable & (kept.bfloat16() @ before == 0)
    return kept, (kept == settled).all()
