"""Region proposal network and caffe's proposal layer (Ren et al. 2015, arXiv:1506.01497).

Follows lib/rpn/proposal_layer.py of bottom-up-attention @514e561 or, where the meta asks for it,
`find_top_rpn_proposals` of detectron2 @02b5c4e (proposal_generator/proposal_utils.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.detector.anchors import MAX_LOG_GROWTH, anchor_grid, decode_boxes
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.detector.suppression import nms_in_rounds, suppress, widened

CANDIDATES = 6000
"""Top-scoring boxes that enter non-maximum suppression."""

OVERLAP = 0.7
"""Overlap from which a box with a lower score is suppressed. Caffe's rule is "at least", that of
`nms` "more than": in float32 no overlap equals 0.7, so they agree."""

SMALLEST_REGION = 16
"""Shortest side of a region in pixels of the original image."""


class ProposalHead(nn.Module):
    """Scores and box deltas of each anchor at each cell of the feature map."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, anchors = architecture.proposal_width, architecture.anchors
        self.conv = nn.Conv2d(architecture.stage_width(4), hidden, kernel_size=3, padding=1)
        self.objectness_logits = nn.Conv2d(hidden, anchors, kernel_size=1)
        self.anchor_deltas = nn.Conv2d(hidden, 4 * anchors, kernel_size=1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return objectness logits (B, h * w * A) and deltas (B, h * w * A, 4).

        features: (B, C, h, w) float32. Both results are in the order of `anchor_grid`.
        """
        hidden = F.relu_(self.conv(features))
        logits = self.objectness_logits(hidden).permute(0, 2, 3, 1)  # (B, A, h, w) -> (B, h, w, A)
        deltas = self.anchor_deltas(hidden).permute(0, 2, 3, 1)
        return logits.flatten(1), deltas.reshape(len(features), -1, 4)


@dataclass(frozen=True)
class ScoredAnchors:
    """Outputs of the proposal network for the anchors of B images, N each.

    logits: (B, N) float32; deltas: (B, N, 4) float32; anchors: (N, 4) float32, scaled pixels.
    """

    logits: Tensor
    deltas: Tensor
    anchors: Tensor


@dataclass(frozen=True)
class Proposals:
    """Proposals of one image, or of B with B first in each shape.

    boxes: (N, 4) float32 x1 y1 x2 y2 in scaled pixels, by falling score.
    is_proposed: (N,) bool, False for padding.
    is_final: () bool, False if suppression had too few rounds.
    factors: (4,) float32, scaled pixels per original pixel of x y x y.
    """

    boxes: Tensor
    is_proposed: Tensor
    is_final: Tensor
    factors: Tensor

    @classmethod
    def stacked(cls, images: Sequence["Proposals"]) -> "Proposals":
        """Return the proposals of B images together."""
        return cls(*map(torch.stack, zip(*(vars(image).values() for image in images), strict=True)))

    def rows(self, rows: Tensor) -> "Proposals":
        """Return some of the proposals of each of B images, (B, M) int64."""
        boxes, is_proposed = (rows_of(values, rows) for values in (self.boxes, self.is_proposed))
        return replace(self, boxes=boxes, is_proposed=is_proposed)

    @property
    def original_boxes(self) -> Tensor:
        """The boxes in pixels of the original images."""
        return self.boxes / self.factors.unsqueeze(-2)


class ProposalGenerator(nn.Module):
    """Region proposal network: boxes that probably contain an object of any class."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.rpn_head = ProposalHead(architecture)

    def forward(
        self, features: Tensor, *, sizes: Sequence[ScaledSize], count: int, meta: DetectorMeta
    ) -> list[Tensor]:
        """Return the top-scoring regions of each image.

        features: (B, C, h, w) float32. Returns (N, 4) float32 each, N <= count, x1 y1 x2 y2 in
        pixels of the scaled image, by falling score; N is 0 where every region is too small.
        """
        return best_proposals(self.score(features, meta=meta), sizes=sizes, count=count, meta=meta)

    def score(self, features: Tensor, *, meta: DetectorMeta) -> ScoredAnchors:
        """Score every anchor at every cell, in float32 also under autocast.

        features: (B, C, h, w).
        """
        logits, deltas = self.rpn_head(features)
        anchors = anchor_grid(
            _anchors_on(features.device, meta.anchors),
            height=features.shape[2],
            width=features.shape[3],
        )
        return ScoredAnchors(logits.float(), deltas.float(), anchors)


@cache
def _anchors_on(device: torch.device, anchors: tuple[tuple[float, ...], ...]) -> Tensor:
    # kept, because a GPU is waited for at each copy; usable in training after an extraction
    with torch.inference_mode(False):
        return torch.tensor(anchors, dtype=torch.float32, device=device)


def best_proposals(
    scored: ScoredAnchors, *, sizes: Sequence[ScaledSize], count: int, meta: DetectorMeta
) -> list[Tensor]:
    """Return the result of `select_proposals` for each of the B images."""
    return [
        select_proposals(logits, deltas, anchors=scored.anchors, size=size, count=count, meta=meta)
        for logits, deltas, size in zip(scored.logits, scored.deltas, sizes, strict=True)
    ]


def delta_limit(meta: DetectorMeta) -> float:
    """Return the largest dw and dh that are decoded."""
    return MAX_LOG_GROWTH if meta.decode_limit else math.inf


def clip_boxes(boxes: Tensor, *, size: ScaledSize, meta: DetectorMeta) -> Tensor:
    """Clip boxes at the image's edges. boxes: (N, 4) in scaled pixels; returns the same shape."""
    last = int(meta.clip_minus1)
    x = boxes[:, 0::2].clamp(min=0, max=size.width - last)
    y = boxes[:, 1::2].clamp(min=0, max=size.height - last)
    return torch.stack([x, y], dim=2).flatten(1)


def select_proposals(
    logits: Tensor,
    deltas: Tensor,
    *,
    anchors: Tensor,
    size: ScaledSize,
    count: int,
    meta: DetectorMeta,
) -> Tensor:
    """Decode and clip boxes, drop small ones, suppress among the top CANDIDATES, keep count.

    logits: (N,) float32.
    deltas, anchors: (N, 4).
    Returns (K, 4), K <= count, by falling score.
    """
    boxes, logits, usable = _candidates(logits, deltas, anchors, size=size, meta=meta)
    boxes, logits = boxes[usable], logits[usable]
    return boxes[suppress(boxes, logits, threshold=OVERLAP, most=count, meta=meta)]


def padded_proposals(
    scored: ScoredAnchors, factors: Tensor, *, size: ScaledSize, count: int, meta: DetectorMeta
) -> Proposals:
    """Return the proposals that `select_proposals` returns, without waiting for a GPU.

    scored: of one image.
    factors: as of `Proposals`.
    """
    logits, deltas = scored.logits[0], scored.deltas[0]
    boxes, _, usable = _candidates(logits, deltas, scored.anchors, size=size, meta=meta)
    kept, is_final = nms_in_rounds(widened(boxes, meta), usable, threshold=OVERLAP)
    # the kept ones first, each part in order
    rows = kept.byte().argsort(descending=True, stable=True)[:count]
    missing = count - len(rows)  # where a small map has fewer anchors
    boxes, kept = F.pad(boxes[rows], (0, 0, 0, missing)), F.pad(kept[rows], (0, missing))
    return Proposals(boxes, kept, is_final, factors)


def _candidates(
    logits: Tensor, deltas: Tensor, anchors: Tensor, *, size: ScaledSize, meta: DetectorMeta
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the top-scoring boxes and their logits, by falling logit, and which are usable."""
    boxes = decode_boxes(deltas, anchors, plus1=meta.decode_plus1, limit=delta_limit(meta))
    boxes = clip_boxes(boxes, size=size, meta=meta)
    drops_before_ranking = meta.min_size_rule == "16 original pixels, before ranking"
    if drops_before_ranking:
        sides = boxes[:, 2:] - boxes[:, :2] + 1  # caffe counts the last pixel
        usable = (sides >= SMALLEST_REGION * size.scale).all(dim=1)
        logits = logits.masked_fill(~usable, -math.inf)
    # Ranking by logit equals caffe's ranking by probability, a rising function of it. The sort is
    # stable, where caffe's is not.
    ranked = logits.argsort(descending=True, stable=True)[:CANDIDATES]
    boxes, logits = boxes[ranked], logits[ranked]
    usable = usable[ranked] if drops_before_ranking else (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    return boxes, logits, usable


def rows_of(values: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of each image: (B, N, ...) and (B, M) int64 -> (B, M, ...)."""
    return values[torch.arange(len(rows), device=rows.device)[:, None], rows]


def batch_rois(boxes: Sequence[Tensor]) -> Tensor:
    """Return boxes (N, 4) of several images as (K, 5): index of the image, x1 y1 x2 y2."""
    return torch.cat(
        [
            torch.cat([image_boxes.new_full((len(image_boxes), 1), index), image_boxes], dim=1)
            for index, image_boxes in enumerate(boxes)
        ]
    )
