"""The bottom-up detector: Faster R-CNN on ResNet's C4 map (Anderson et al. 2018, section 3.1)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.heads import RegionHeads
from a2cap.extract.detector.operators import can_use_tables, pooled_cells, roi_align, roi_pool
from a2cap.extract.detector.proposals import ProposalGenerator
from a2cap.extract.detector.resnet import STRIDE, Architecture, Backbone
from a2cap.extract.detector.roi_pool import PooledCells

CHUNK = 25
"""Regions per pass of res5 on a CPU; at 14 x 14 cells each takes 0.8 MB pooled and 1.6 MB in every
wide layer of res5. More are no faster. Distinct cells of all regions take 27 kB each."""

CHUNK_OF_GPU = 100

Pooling = Callable[..., Iterator[Tensor]]
"""`roi_pool`, or a function that replaces it."""


@dataclass(frozen=True)
class RegionPredictions:
    """Outputs of the heads for K regions.

    features: (K, F) float32; class_logits: (K, classes + 1), background last; attribute_logits:
    (K, attributes + 1), "no attribute" last, or None without an attribute head.
    """

    features: Tensor
    class_logits: Tensor
    attribute_logits: Tensor | None


class Detector(nn.Module):
    """Backbone, proposal network and heads, with the conventions that its weights need.

    Parameters are uninitialised until weights are loaded or calibrated.
    """

    def __init__(self, architecture: Architecture, meta: DetectorMeta) -> None:
        super().__init__()
        self.architecture = architecture
        self.meta = meta
        self.backbone = Backbone(architecture, padded_pool=meta.stem_pool == "padding 1")
        self.proposal_generator = ProposalGenerator(architecture)
        self.roi_heads = RegionHeads(architecture, dilated=meta.last_stage == "dilated")
        self.pool: Pooling = roi_pool if meta.region_pooling == "maximum" else roi_align

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps, one cell per 16 pixels.

        images: (B, 3, H, W) float32, BGR minus the mean. Returns (B, C, h, w).
        """
        return cast(Tensor, self.backbone(images))

    def predict(self, features: Tensor, rois: Tensor, *, roi_size: int) -> RegionPredictions:
        """Return feature, class and attribute of each region, in order.

        features: (B, C, h, w); rois: (K, 5) float32, image index in [0, B) and x1 y1 x2 y2 in
        scaled pixels; roi_size: cells per side into which a region is pooled.
        """
        heads = self.roi_heads
        if self.shares_cells(features, rois):
            maps = self.cells(features, rois, roi_size=roi_size)
            vectors = torch.cat([heads.of_cells(cells, CHUNK) for cells in maps])
        else:
            chunks = self.pooled(features, rois, roi_size=roi_size)
            vectors = torch.cat([heads(chunk) for chunk in chunks])
        class_logits = heads.box_predictor(vectors)
        attribute_logits = heads.box_predictor.attribute_logits(vectors, class_logits)
        return RegionPredictions(vectors, class_logits, attribute_logits)

    def pooled(self, features: Tensor, rois: Tensor, *, roi_size: int) -> Iterator[Tensor]:
        """Yield pooled regions, a chunk at a time: (k, C, roi_size, roi_size).

        Arguments as of `predict`.
        """
        chunk = chunk_on(features.device)
        return self.pool(features, rois, size=roi_size, scale=1 / STRIDE, chunk=chunk)

    def shares_cells(self, features: Tensor, rois: Tensor) -> bool:
        """Return whether regions share cells that the first block of res5 can take one by one."""
        is_dilated = self.architecture.has_bottlenecks and self.meta.last_stage == "dilated"
        # every pass of whole chunks, so that all have equal bits; few given boxes share too little
        are_many = len(rois) >= CHUNK * len(features)
        return is_dilated and are_many and self.pool is roi_pool and can_use_tables(features)

    def cells(self, features: Tensor, rois: Tensor, *, roi_size: int) -> Iterator[PooledCells]:
        """Yield the pooled regions of each map, if `shares_cells`; arguments as of `predict`."""
        return pooled_cells(features, rois, size=roi_size, scale=1 / STRIDE)


def chunk_on(device: torch.device) -> int:
    """Return the number of regions that pass res5 together."""
    return CHUNK if device.type == "cpu" else CHUNK_OF_GPU
