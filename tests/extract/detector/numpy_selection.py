"""The selection of regions in numpy, one image at a time, as a slow reference."""

import numpy as np


def numpy_selection(rule, boxes, probabilities):
    """Return the selected rows of one image; boxes (N, 4), probabilities (N, C)."""
    fewest, most = rule.min_regions, rule.max_regions
    overlapping = box_overlaps(boxes) >= 0.3
    floor = rule.confidence
    best = surviving_confidence(probabilities, overlapping, floor=floor)
    confident = np.flatnonzero(best >= rule.confidence)
    if fewest <= len(confident) <= most:
        return confident
    while floor > 0 and np.count_nonzero(best >= floor) < fewest:
        floor = floor / 4 if floor > 1e-6 else 0.0
        best = surviving_confidence(probabilities, overlapping, floor=floor)
    count = fewest if len(confident) < fewest else most
    return np.argsort(-best, kind="stable")[:count]


def box_overlaps(boxes):
    pixel = np.float32(1)
    areas = (boxes[:, 2] - boxes[:, 0] + pixel) * (boxes[:, 3] - boxes[:, 1] + pixel)
    top_left = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    bottom_right = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    sides = np.maximum(bottom_right - top_left + pixel, 0)
    shared = sides[:, :, 0] * sides[:, :, 1]
    return np.asarray(shared / (areas[:, None] + areas[None, :] - shared), dtype=np.float32)


def surviving_confidence(probabilities, overlapping, *, floor):
    candidates = probabilities.T[(probabilities >= floor).any(axis=0)]  # (N, C) -> (C', N)
    ranking = np.argsort(-candidates, axis=1, kind="stable")
    alive = candidates >= floor
    classes = np.arange(len(candidates))
    for rank in range(alive.sum(axis=1).max(initial=0)):
        region = ranking[:, rank]
        suppressed = overlapping[region] & alive[classes, region][:, None]
        suppressed[classes, region] = False
        alive &= ~suppressed
    return np.where(alive, candidates, 0).max(axis=0, initial=0)
