"""Regions of an image and their selection (bottom-up-attention @514e561, generate_tsv.py).

For every class, proposals are suppressed by higher-scoring ones of that class. A region's
confidence is its probability of the best class in which it survives.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from a2cap.data.errors import InputError
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.proposals import SMALLEST_REGION, Proposals, rows_of

CLASS_OVERLAP = 0.3
"""Overlap, in original pixels, from which a proposal is suppressed by a higher-scoring one."""

MARGIN = 8
"""Regions, beside a tenth, that are likely to be selected in place of others."""


@dataclass(frozen=True)
class DetectedRegions:
    """N regions of each of B images.

    boxes: (B, N, 4) x1 y1 x2 y2 in original pixels.
    features: (B, N, F).
    probabilities: (B, N, classes).
    attributes: (B, N, 2) of id and probability, or (B, N, 0) without an attribute head.
    is_exact: (B, N) bool, False where only boxes and rough probabilities are known.
    is_proposed: (B, N) bool, False for padding.
    All but the last two are float32.
    """

    boxes: Tensor
    features: Tensor
    probabilities: Tensor
    attributes: Tensor
    is_exact: Tensor
    is_proposed: Tensor

    @classmethod
    def rough(
        cls,
        proposals: Proposals,
        probabilities: Tensor,
        *,
        feature_width: int,
        has_attributes: bool,
    ) -> Self:
        """Return regions of which only boxes and rough probabilities are known."""
        features, attributes = (
            probabilities.new_zeros(*probabilities.shape[:2], width)
            for width in (feature_width, 2 * has_attributes)
        )
        boxes, is_proposed = proposals.original_boxes, proposals.is_proposed
        is_exact = torch.zeros_like(is_proposed)
        return cls(boxes, features, probabilities, attributes, is_exact, is_proposed)

    def updated(self, rows: Tensor, exact: "DetectedRegions") -> "DetectedRegions":
        """Return the regions with other values in some rows of each image, (B, M) int64."""
        changed = {}
        for name, values in vars(self).items():
            new = getattr(exact, name)
            index = rows if new.ndim == 2 else rows[..., None].expand_as(new)
            changed[name] = values.scatter(1, index, new)
        return DetectedRegions(**changed)

    def rows(self, rows: Tensor) -> "DetectedRegions":
        """Return some of the regions of each image, (B, M) int64."""
        return DetectedRegions(**{n: rows_of(values, rows) for n, values in vars(self).items()})


@dataclass(frozen=True)
class RegionSelection:
    """Rule by which proposals become the regions of an image; fields as of `ExtractConfig`.

    waits: False if no value is read from a GPU; results then are padded.
    """

    proposals: int
    roi_size: int
    confidence: float
    min_regions: int
    max_regions: int
    waits: bool = True

    def require(self, proposed: int, size: ScaledSize) -> None:
        """Raise InputError for an image with too few proposals."""
        if proposed < self.min_regions:
            raise InputError(
                f"too few regions of {SMALLEST_REGION} x {SMALLEST_REGION} pixels: {proposed} "
                f"proposed in an image of {round(size.width / size.factors[0])} x "
                f"{round(size.height / size.factors[1])}, extract.min_regions is "
                f"{self.min_regions}; lower it, or leave the image out"
            )

    def __call__(self, regions: DetectedRegions) -> tuple[Tensor, Tensor]:
        """Return the indices of the regions that caffe would write, in its order, and their number.

        regions: in any number, by falling proposal score, of a single image if this waits. The
        result is in their order if between min_regions and max_regions reach the confidence,
        otherwise by falling confidence; it has fewer than min_regions only if there are fewer
        regions. Returns (B, M) int64 and (B,) int64; indices from that number on are padding.
        """
        fewest, most, is_proposed = self.min_regions, self.max_regions, regions.is_proposed
        best = self._surviving(regions).masked_fill(~is_proposed, -1)
        is_confident = best >= self.confidence
        count = is_confident.sum(dim=1)
        in_range = (count >= fewest) & (count <= most)
        # Caffe's sort is unstable; here, equal confidences keep the order of the proposals.
        ranking = torch.where(in_range[:, None], is_confident.to(best.dtype), best)
        rows = ranking.argsort(dim=1, descending=True, stable=True)[:, :most]
        counts = count.clamp(fewest, most).minimum(is_proposed.sum(dim=1))
        return (rows[:, : int(counts)] if self.waits else rows), counts

    def _surviving(self, regions: DetectedRegions) -> Tensor:
        """Return the best probability of each region among the classes in which it survives."""
        probabilities, is_proposed = regions.probabilities, regions.is_proposed
        overlapping = box_overlaps(regions.boxes) >= CLASS_OVERLAP
        if not self.waits:
            return surviving_confidence(probabilities, overlapping, is_proposed)
        # As written in the source this is 1,600 suppressions per image. Pruning gives the same
        # result: a (region, class) pair below some probability cannot suppress one above it, so
        # pairs below the confidence matter only while fewer than min_regions reach it.
        floor = self.confidence
        while True:
            classes = (probabilities >= floor).any(dim=1)[0]
            pruned = probabilities[:, :, classes]
            best = surviving_confidence(pruned, overlapping, is_proposed, floor=floor)
            if floor == 0 or int((best >= floor).sum()) >= self.min_regions:
                return best
            floor = floor / 4 if floor > 1e-6 else 0.0

    def with_margin(self) -> "RegionSelection":
        """Return a selection of more regions, those that are likely to be selected."""
        fewest, most = (
            count + MARGIN + count // 10 for count in (self.min_regions, self.max_regions)
        )
        return replace(self, min_regions=fewest, max_regions=most)


def box_overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union of boxes that include their last pixel.

    boxes: (B, N, 4) float32 x1 y1 x2 y2. Returns (B, N, N) float32.
    """
    # Not `a2cap.data.boxes`: caffe's cpu_nms.pyx counts the last pixel.
    x1, y1, x2, y2 = boxes.unbind(dim=2)
    areas = (x2 - x1 + 1) * (y2 - y1 + 1)
    width = torch.minimum(x2[:, :, None], x2[:, None]) - torch.maximum(x1[:, :, None], x1[:, None])
    height = torch.minimum(y2[:, :, None], y2[:, None]) - torch.maximum(y1[:, :, None], y1[:, None])
    shared = (width + 1).clamp_(min=0) * (height + 1).clamp_(min=0)
    return shared / (areas[:, :, None] + areas[:, None] - shared)


def surviving_confidence(
    probabilities: Tensor, overlapping: Tensor, is_proposed: Tensor, *, floor: float = 0
) -> Tensor:
    """Return the best probability of each region among the classes in which it survives, (B, N).

    probabilities: (B, N, C).
    overlapping: (B, N, N) bool.
    is_proposed: (B, N) bool.
    Pairs below floor are ignored, so a region whose classes are all below gets 0. All classes of
    all images step through their rankings together.
    """
    images, regions, classes = probabilities.shape
    candidates = probabilities.transpose(1, 2).reshape(-1, regions)  # (B, N, C) -> (B * C, N)
    alive = (candidates >= floor) & is_proposed.repeat_interleave(classes, dim=0)
    ranking = candidates.masked_fill(~alive, -1).argsort(dim=1, descending=True, stable=True)
    # a region does not suppress itself
    itself = torch.eye(regions, dtype=torch.bool, device=overlapping.device)
    suppressed = (overlapping & ~itself).flatten(0, 1)  # -> (B * N, N)
    first = torch.arange(images, device=ranking.device).repeat_interleave(classes)[:, None]
    rows = ranking + regions * first  # of `others`
    steps = regions if floor == 0 else int(alive.sum(dim=1).amax()) if len(alive) else 0
    for rank in range(steps):
        # A region that is alive at its turn overlaps no higher-ranked one that is: it would be
        # suppressed. So only lower-ranked ones are suppressed now.
        is_alive = alive.gather(1, ranking[:, rank, None])
        alive.masked_fill_(suppressed.index_select(0, rows[:, rank]) & is_alive, value=False)
    surviving = torch.where(alive, candidates, 0).view(images, classes, regions)
    return surviving.amax(dim=1) if classes else surviving.sum(dim=1)
