"""Regions of an image and their selection (bottom-up-attention @514e561, generate_tsv.py).

For every class, proposals are suppressed by higher-scoring ones of that class. A region's
confidence is its probability of the best class in which it survives.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.proposals import SMALLEST_REGION

CLASS_OVERLAP = 0.3
"""Overlap, in original pixels, from which a proposal is suppressed by a higher-scoring one."""

MARGIN = 8
"""Regions, beside a tenth, that are likely to be selected in place of others."""


@dataclass(frozen=True)
class DetectedRegions:
    """K regions in the memory of the CPU.

    boxes: (K, 4) x1 y1 x2 y2 in original pixels; features: (K, F); probabilities: (K, classes);
    attributes: (K, 2) of id and probability, or (K, 0) without an attribute head. All float32.
    is_exact: (K,) bool, False where only boxes and rough probabilities are known.
    """

    boxes: NDArray[np.float32]
    features: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    attributes: NDArray[np.float32]
    is_exact: NDArray[np.bool_]

    @classmethod
    def rough(
        cls,
        boxes: NDArray[np.float32],
        probabilities: NDArray[np.float32],
        *,
        feature_width: int,
        has_attributes: bool,
    ) -> Self:
        """Return regions of which only boxes and rough probabilities are known."""
        features, attributes = (
            np.zeros((len(boxes), width), np.float32)
            for width in (feature_width, 2 * has_attributes)
        )
        return cls(boxes, features, probabilities, attributes, np.zeros(len(boxes), bool))

    def updated(self, rows: NDArray[np.int64], exact: "DetectedRegions") -> "DetectedRegions":
        """Return the regions with other values in some rows."""
        changed = {name: values.copy() for name, values in vars(self).items()}
        for name, values in changed.items():
            values[rows] = getattr(exact, name)
        return DetectedRegions(**changed)

    def rows(self, rows: NDArray[np.int64]) -> "DetectedRegions":
        """Return some of the regions."""
        return DetectedRegions(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class RegionSelection:
    """Rule by which proposals become the regions of an image; fields as of `ExtractConfig`."""

    proposals: int
    roi_size: int
    confidence: float
    min_regions: int
    max_regions: int

    def require(self, proposed: int, size: ScaledSize) -> None:
        """Raise InputError for an image with too few proposals."""
        if proposed < self.min_regions:
            raise InputError(
                f"too few regions of {SMALLEST_REGION} x {SMALLEST_REGION} pixels: {proposed} "
                f"proposed in an image of {round(size.width / size.factors[0])} x "
                f"{round(size.height / size.factors[1])}, extract.min_regions is "
                f"{self.min_regions}; lower it, or leave the image out"
            )

    def __call__(self, regions: DetectedRegions) -> NDArray[np.int64]:
        """Return the indices of the regions that caffe would write, in its order.

        regions: in any number, by falling proposal score. The result is in their order if between
        min_regions and max_regions reach the confidence, otherwise by falling confidence; it has
        fewer than min_regions only if there are fewer regions.
        """
        # As written in the source this is 1,600 suppressions per image. Pruning gives the same
        # result: a (region, class) pair below some probability cannot suppress one above it, so
        # pairs below the confidence matter only while fewer than min_regions reach it.
        probabilities, fewest, most = regions.probabilities, self.min_regions, self.max_regions
        overlapping = box_overlaps(regions.boxes) >= CLASS_OVERLAP
        floor = self.confidence
        best = surviving_confidence(probabilities, overlapping, floor=floor)
        confident = np.flatnonzero(best >= self.confidence)
        if fewest <= len(confident) <= most:
            return confident
        while floor > 0 and np.count_nonzero(best >= floor) < fewest:
            floor = floor / 4 if floor > 1e-6 else 0.0
            best = surviving_confidence(probabilities, overlapping, floor=floor)
        count = fewest if len(confident) < fewest else most
        # Caffe's sort is unstable; here, equal confidences keep the order of the proposals.
        return np.argsort(-best, kind="stable")[:count]

    def with_margin(self) -> "RegionSelection":
        """Return a selection of more regions, those that are likely to be selected."""
        fewest, most = (
            count + MARGIN + count // 10 for count in (self.min_regions, self.max_regions)
        )
        return replace(self, min_regions=fewest, max_regions=most)


def box_overlaps(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the intersection over union of boxes that include their last pixel.

    boxes: (N, 4) float32 x1 y1 x2 y2. Returns (N, N) float32.
    """
    # Not `a2cap.data.boxes`: caffe's cpu_nms.pyx counts the last pixel.
    pixel = np.float32(1)
    areas = (boxes[:, 2] - boxes[:, 0] + pixel) * (boxes[:, 3] - boxes[:, 1] + pixel)
    top_left = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    bottom_right = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    sides = np.maximum(bottom_right - top_left + pixel, 0)
    shared = sides[:, :, 0] * sides[:, :, 1]
    return np.asarray(shared / (areas[:, None] + areas[None, :] - shared), dtype=np.float32)


def surviving_confidence(
    probabilities: NDArray[np.float32], overlapping: NDArray[np.bool_], *, floor: float
) -> NDArray[np.float32]:
    """Return the best probability of each region among the classes in which it survives.

    probabilities: (N, C); overlapping: (N, N). Pairs below floor are ignored, so a region whose
    classes are all below gets 0. All classes step through their rankings together.
    """
    candidates = probabilities.T[(probabilities >= floor).any(axis=0)]  # (N, C) -> (C', N)
    ranking = np.argsort(-candidates, axis=1, kind="stable")
    alive = candidates >= floor
    classes = np.arange(len(candidates))
    for rank in range(alive.sum(axis=1).max(initial=0)):
        region = ranking[:, rank]
        suppressed = overlapping[region] & alive[classes, region][:, None]
        suppressed[classes, region] = False
        alive &= ~suppressed
    surviving = np.where(alive, candidates, 0)
    return np.asarray(surviving.max(axis=0, initial=0), dtype=np.float32)
