"""Regions in one tensor, so that a GPU is waited for once when they are copied from it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.regions import Regions
from a2cap.extract.detector.input import Pixels
from a2cap.extract.detector.region_selection import DetectedRegions


def packed(boxes: Tensor, features: Tensor, classes: Tensor, attributes: Tensor) -> Tensor:
    """Return box, score, class, attribute and feature of each region side by side.

    Args:
        boxes: (..., 4) float32 in original pixels.
        features: (..., F) float32.
        classes: (..., C) float32, their probabilities.
        attributes: (..., 2) float32 of id and probability, or (..., 0).
    """
    # ids are exact in float32 up to 2^24
    ids = classes.argmax(dim=-1, keepdim=True).float()
    return torch.cat([boxes, classes.amax(dim=-1, keepdim=True), ids, attributes, features], dim=-1)


def packed_regions(regions: DetectedRegions) -> Tensor:
    """Return regions of B images as `packed` does, (B, N, columns)."""
    return packed(regions.boxes, regions.features, regions.probabilities, regions.attributes)


def unpacked(columns: NDArray[np.float32], image: Pixels, *, feature_width: int) -> Regions:
    """Return the regions of one image; columns: (R, columns) as of `packed`."""
    boxes, scores, ids, rest = np.split(columns, [4, 5, 6], axis=1)
    attributes, features = np.split(rest, [rest.shape[1] - feature_width], axis=1)
    has_attributes = attributes.shape[1] > 0
    return Regions(
        boxes=np.ascontiguousarray(boxes),
        features=np.ascontiguousarray(features),  # a copy, which the batch does not outlive
        scores=scores[:, 0].copy(),
        class_ids=ids[:, 0].astype(np.int32),
        attribute_ids=attributes[:, 0].astype(np.int32) if has_attributes else None,
        attribute_scores=attributes[:, 1].copy() if has_attributes else None,
        width=image.shape[1],
        height=image.shape[0],
    )
