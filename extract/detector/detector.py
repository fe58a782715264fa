"""The bottom-up detector: Faster R-CNN on ResNet's C4 map (Anderson et al. 2018, section 3.1)."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.heads import RegionHeads
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.pooled_cells import PooledCells
from a2cap.extract.detector.proposals import (
    ProposalGenerator,
    Proposals,
    batch_rois,
    padded_proposals,
    rows_of,
)
from a2cap.extract.detector.region_selection import DetectedRegions, RegionSelection
from a2cap.extract.detector.resnet import STRIDE, Architecture, Backbone, NormalizedConvolution
from a2cap.extract.detector.roi_pool import can_use_tables, pooled_cells, roi_align, roi_pool
from a2cap.extract.detector.started_batches import moved

CHUNK = 25
"""Regions per pass of res5 on a CPU; at 14 x 14 cells each takes 0.8 MB pooled and 1.6 MB in every
wide layer of res5. More are no faster. Distinct cells of all regions take 27 kB each."""

CHUNK_OF_GPU = 100

Pooling = Callable[..., Iterator[Tensor]]
"""`roi_pool`, or a function that replaces it."""
Classify = Callable[..., DetectedRegions]
"""`Detector.classify`, or a function that replaces it in another precision."""


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

    def forward(
        self, image: Tensor, *, size: ScaledSize, selection: RegionSelection, classify: Classify
    ) -> DetectedRegions:
        """Detect the regions of an image, with features in float32.

        image: (1, 3, H, W) float32, BGR minus the mean. Raises InputError for too few proposals.
        """
        features = self.backbone(image)  # -> (1, C, h, w)
        boxes = self.proposal_generator(
            features, sizes=[size], count=selection.proposals, meta=self.meta
        )
        selection.require(len(boxes[0]), size)
        is_proposed = torch.ones(1, len(boxes[0]), dtype=torch.bool, device=image.device)
        factors = image.new_tensor([size.factors * 2])
        proposals = Proposals(torch.stack(boxes), is_proposed, is_proposed[:, 0], factors)
        regions = classify(self, [features], proposals, selection=selection)
        selected, _ = selection(regions)
        # a region that was classified roughly may rise into the selection, or fall out of it
        while (is_rough := ~rows_of(regions.is_exact, selected)).any():
            rough = selected[is_rough][None]
            exact = self.classify([features], proposals.rows(rough), selection=selection)
            regions = regions.updated(rough, exact)
            selected, _ = selection(regions)
        return regions.rows(selected)

    def detect_padded(
        self,
        batches: Sequence[tuple[Tensor, Sequence[ScaledSize]]],
        factors: Tensor,
        *,
        selection: RegionSelection,
        classify: Classify,
    ) -> tuple[DetectedRegions, Tensor]:
        """Detect the regions of B images without waiting for a GPU.

        batches: of b images each, B in all, as of `maps`.
        factors: (B, 4) float32, as of `Proposals`.
        selection: one that does not wait.
        Returns `selection.max_regions` regions an image, padded, and (B, 3) int64: regions
        proposed, regions selected, and 1 if the result is that of `forward`, which is 0 in rare
        images.
        """
        sizes = [size for _, batch_sizes in batches for size in batch_sizes]
        maps = [features for batch in batches for features in self.maps(*batch)]
        proposals = Proposals.stacked(
            [
                padded_proposals(
                    self.proposal_generator.score(features, meta=self.meta),
                    image_factors,
                    size=size,
                    count=selection.proposals,
                    meta=self.meta,
                )
                for features, image_factors, size in zip(maps, factors, sizes, strict=True)
            ]
        )
        regions = classify(self, maps, proposals, selection=selection)
        selected, counts = selection(regions)
        regions = regions.rows(selected)
        is_padding = torch.arange(selected.shape[1], device=counts.device) >= counts[:, None]
        is_final = (regions.is_exact | is_padding).all(dim=1) & proposals.is_final
        return regions, torch.stack([proposals.is_proposed.sum(dim=1), counts, is_final], dim=1)

    def maps(self, images: Tensor, sizes: Sequence[ScaledSize]) -> list[Tensor]:
        """Return the feature map of each image, (1, C, h, w), to rounding that of the image alone.

        images: (B, 3, H, W) float32, each with zeros beyond its size; sizes: of each.
        """
        sides = [(size.height, size.width) for size in sizes]
        if all(side == images.shape[2:] for side in sides):
            return list(torch.split(self.backbone(images), 1))
        together = self.backbone.of_padded(images, moved(torch.tensor(sides), images.device))
        cells = [[self.backbone.levels(side)[-1] for side in pair] for pair in sides]
        return [
            features[..., :rows, :columns].contiguous(memory_format=torch.channels_last)
            for features, (rows, columns) in zip(torch.split(together, 1), cells, strict=True)
        ]

    def classify(
        self, maps: Sequence[Tensor], proposals: Proposals, *, selection: RegionSelection
    ) -> DetectedRegions:
        """Classify the proposals of B images in float32; maps: (1, C, h, w) of each.

        On a CPU whole chunks are computed, so that features do not depend on the number of regions.
        Regions of two images never pass together, so that they do not depend on other images.
        """
        count = proposals.boxes.shape[1]
        # a convolution of few regions adds in another order, on a GPU too, where chunks are larger
        missing = -count % CHUNK if maps[0].device.type == "cpu" else 0
        predicted = []
        for features, boxes in zip(maps, proposals.boxes, strict=True):
            rois = batch_rois([torch.cat([boxes, boxes[-1:].expand(missing, -1)])])
            predicted.append(self.predict(features, rois, roi_size=selection.roi_size))
        vectors, class_logits = (
            torch.stack([getattr(heads, name)[:count] for heads in predicted])
            for name in ("features", "class_logits")
        )
        attributes = torch.stack([self.attributes_of(heads)[:count] for heads in predicted])
        is_exact = torch.ones_like(proposals.is_proposed)
        boxes, is_proposed = proposals.original_boxes, proposals.is_proposed
        classes = probabilities(class_logits)
        return DetectedRegions(boxes, vectors, classes, attributes, is_exact, is_proposed)

    def predict(self, features: Tensor, rois: Tensor, *, roi_size: int) -> RegionPredictions:
        """Return feature, class and attribute of each region, in order.

        features: (B, C, h, w).
        rois: (K, 5) float32, image index in [0, B) and x1 y1 x2 y2 in scaled pixels.
        roi_size: cells per side into which a region is pooled.
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

    def attributes_of(self, predicted: RegionPredictions) -> Tensor:
        """Return id and probability of each region's attribute: (K, 2) float32, (K, 0) if none."""
        if (logits := predicted.attribute_logits) is None:
            return predicted.features[:, :0]
        # without "no attribute" the same attribute is first, with a higher probability
        is_foreground = self.meta.attribute_softmax == "foreground"
        each = logits[:, :-1].softmax(dim=1) if is_foreground else probabilities(logits)
        return torch.stack([logits[:, :-1].argmax(dim=1).float(), each.amax(dim=1)], dim=1)

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


def fuse(detector: Detector) -> Detector:
    """Return a copy without normalisations; the original stays as it is on disk."""
    shared = {id(t): t for t in (*detector.parameters(), *detector.buffers())}
    fused = copy.deepcopy(detector, memo=dict(shared))  # shares tensors instead of copying them
    for module in list(fused.modules()):
        if isinstance(module, NormalizedConvolution):
            module.fold()
    return fused.to(memory_format=torch.channels_last).eval()


def probabilities(logits: Tensor) -> Tensor:
    """Return (..., classes) in [0, 1]: a softmax over all rows, without the background's."""
    return logits.softmax(dim=-1)[..., :-1]


def chunk_on(device: torch.device) -> int:
    """Return the number of regions that pass res5 together."""
    return CHUNK if device.type == "cpu" else CHUNK_OF_GPU
