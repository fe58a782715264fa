"""Heads for class and attribute of a region (Anderson et al. 2018, section 3.1).

Background and "no attribute" are the last rows.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.detector.pooled_cells import PooledCells
from a2cap.extract.detector.resnet import (
    Architecture,
    NormalizedConvolution,
    ResidualBlock,
    residual_stage,
)


class BoxPredictor(nn.Module):
    """Classifiers over pooled region features."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, classes = architecture.feature_width, architecture.classes
        self.cls_score = nn.Linear(width, classes + 1)
        # not used by extraction: published features belong to the boxes as proposed
        self.bbox_pred = nn.Linear(width, 4 * classes)
        self.has_attributes = architecture.attributes > 0
        if self.has_attributes:
            embedding, hidden = architecture.embedding_width, architecture.attribute_width
            self.cls_embedding = nn.Embedding(classes + 1, embedding)
            self.fc_attr = nn.Linear(width + embedding, hidden)
            self.attr_score = nn.Linear(hidden, architecture.attributes + 1)

    def forward(self, features: Tensor) -> Tensor:
        """Classify. features: (K, F) float32. Returns (K, classes + 1), background last."""
        return cast(Tensor, self.cls_score(features))

    def attribute_logits(self, features: Tensor, class_logits: Tensor) -> Tensor | None:
        """Return attribute logits given the most likely class, which may be the background.

        features: (K, F); class_logits: (K, classes + 1). Returns (K, attributes + 1), "no
        attribute" last, or None where the weights have no attribute head.
        """
        if not self.has_attributes:
            return None
        return self.attribute_logits_of(features, class_logits.argmax(dim=1))

    def attribute_logits_of(self, features: Tensor, class_ids: Tensor) -> Tensor:
        """Return attribute logits given a class; the weights must have an attribute head.

        features: (K, F); class_ids: (K,) int64. Returns (K, attributes + 1), "no attribute" last.
        """
        embedded = self.cls_embedding(class_ids)
        hidden = F.relu_(self.fc_attr(torch.cat([features, embedded], dim=1)))
        return cast(Tensor, self.attr_score(hidden))


class RegionHeads(nn.Module):
    """Stage res5 on each pooled region, its mean as the feature, and the classifiers."""

    def __init__(self, architecture: Architecture, *, dilated: bool = True) -> None:
        super().__init__()
        self.res5 = residual_stage(architecture, 5, dilated=dilated)
        self.box_predictor = BoxPredictor(architecture)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the feature of each region.

        pooled: (K, C, n, n) float32. Returns (K, F) float32, not negative.
        """
        return cast(Tensor, self.res5(pooled).mean(dim=(2, 3)))

    def of_cells(self, cells: PooledCells, chunk: int) -> Tensor:
        """Return the feature of each region from cells that regions may share, (K, F) float32.

        chunk: regions per pass. A distinct cell passes the first block once: its 1x1 convolutions,
        and each tap of the 3x3 one. For dilated bottlenecks.
        """
        first, later_blocks = cast(ResidualBlock, self.res5[0]), self.res5[1:]
        convolution = first.conv2

        def enter(x: Tensor) -> tuple[Tensor, Tensor]:
            taps = convolution.taps(F.relu_(first.conv1(x)))
            return taps, cast(NormalizedConvolution, first.shortcut)(x)

        taps, rest = cells.mapped(enter)
        sums = taps.summed_taps(chunk, dilation=convolution.dilation[0])
        vectors = []
        for summed, shortcut in zip(sums, rest.regions(chunk), strict=True):
            x = first.added(convolution.of_sums(summed), shortcut)
            vectors.append(later_blocks(x).mean(dim=(2, 3)))
        return torch.cat(vectors)
