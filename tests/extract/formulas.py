"""Formulas of boxes and losses on plain numbers, for tests that write procedures out with loops."""

import numpy as np


def iou(a, b, *, plus1=0):
    """Return the overlap of two boxes; plus1: 1 if they include their last pixel."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + plus1
    height = min(a[3], b[3]) - max(a[1], b[1]) + plus1
    shared = max(width, 0) * max(height, 0)
    areas = [(c[2] - c[0] + plus1) * (c[3] - c[1] + plus1) for c in (a, b)]
    return shared / (sum(areas) - shared)


def smooth_l1(actual, expected):
    """Return the sum of smooth L1 that bends at 1/9."""
    errors = [abs(a - b) for a, b in zip(actual, expected, strict=True)]
    return sum(9 * e * e / 2 if e < 1 / 9 else e - 1 / 18 for e in errors)


def log_softmax(row):
    return [value - np.logaddexp.reduce(row) for value in row]
