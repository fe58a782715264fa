"""Matching of anchors and regions with true boxes, and sampling for a training step.

The results equal those of torchvision's Matcher and BalancedPositiveNegativeSampler, whose module
is private, with an explicit generator and with crowds, which are never background.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from a2cap.extract.torchvision_module import torchvision_module

BACKGROUND, IGNORED = -1, -2
"""Matches of background regions, and of regions that are not trained on."""

CROWDED = 0.5
"""Part of a region within a crowd from which the region is not background."""


@dataclass(frozen=True)
class MatchRule:
    """Overlaps from which a region matches a true box, and below which it is background.

    keeps_best: whether each true box also matches the regions that overlap it most, however little.
    """

    foreground: float
    background: float
    keeps_best: bool


ANCHOR_RULE = MatchRule(foreground=0.7, background=0.3, keeps_best=True)
REGION_RULE = MatchRule(foreground=0.5, background=0.5, keeps_best=False)
"""Rules of Ren et al. 2015, section 3.1.2, and Girshick 2015, section 2.3, as in torchvision."""


def match(boxes: Tensor, regions: Tensor, *, crowds: Tensor, rule: MatchRule) -> Tensor:
    """Return the index of the true box that each region matches, BACKGROUND or IGNORED.

    boxes: (N, 4) float32, N may be 0.
    regions: (R, 4).
    crowds: (M, 4).
    Returns (R,) int64.
    """
    matches = torch.full((len(regions),), BACKGROUND, device=regions.device)
    if len(boxes):
        overlaps = cast(Tensor, torchvision_module("ops").box_iou(boxes, regions))  # (N, R)
        best, nearest = overlaps.max(dim=0)
        matches[best >= rule.background] = IGNORED
        is_matched = best >= rule.foreground
        if rule.keeps_best:
            # all regions that share a box's best overlap, each with the box nearest to itself
            is_matched |= (overlaps == overlaps.amax(dim=1, keepdim=True)).any(dim=0)
        matches = torch.where(is_matched, nearest, matches)
    if len(crowds):
        crowded = _part_within(regions, crowds) >= CROWDED
        matches = matches.masked_fill(crowded & (matches == BACKGROUND), IGNORED)
    return matches


def sample(
    matches: Tensor, *, count: int, positive_fraction: float, generator: torch.Generator
) -> Tensor:
    """Sample at most count regions, at most the given fraction of them foreground.

    matches: (R,) as of `match`.
    generator: on the CPU.
    Returns indices, (K,) int64 in rising order.
    """
    foreground, background = (
        kind.nonzero()[:, 0].cpu() for kind in (matches >= 0, matches == BACKGROUND)
    )
    positives = min(len(foreground), int(count * positive_fraction))
    taken = [
        rows[torch.randperm(len(rows), generator=generator)[:most]]
        for rows, most in ((foreground, positives), (background, count - positives))
    ]
    return torch.cat(taken).sort().values.to(matches.device)


def _part_within(regions: Tensor, crowds: Tensor) -> Tensor:
    """Return the largest part of each region's area within one crowd: (R,) in [0, 1]."""
    top_left = torch.maximum(regions[:, None, :2], crowds[None, :, :2])
    bottom_right = torch.minimum(regions[:, None, 2:], crowds[None, :, 2:])
    shared = (bottom_right - top_left).clamp(min=0).prod(dim=2)  # (R, M)
    areas = (regions[:, 2:] - regions[:, :2]).prod(dim=1).clamp(min=1e-6)
    return (shared / areas[:, None]).amax(dim=1)
