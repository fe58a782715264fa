"""The bottom-up detector: Faster R-CNN on ResNet's C4 map (Anderson et al. 2018, section 3.1)."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.heads import RegionHeads
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.pooled_cells import PooledCells
from a2cap.extract.detector.proposals import ProposalGenerator, batch_rois
from a2cap.extract.detector.region_selection import DetectedRegions, RegionSelection
from a2cap.extract.detector.resnet import STRIDE, Architecture, Backbone, NormalizedConvolution
from a2cap.extract.detector.roi_pool import can_use_tables, pooled_cells, roi_align, roi_pool

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
        (proposals,) = self.proposal_generator(
            features, sizes=[size], count=selection.proposals, meta=self.meta
        )
        selection.require(len(proposals), size)
        regions = classify(self, features, proposals, size=size, selection=selection)
        selected = selection(regions)
        # a region that was classified roughly may rise into the selection, or fall out of it
        while len(rough := selected[~regions.is_exact[selected]]):
            boxes = rows_of(proposals, rough)
            exact = self.classify(features, boxes, size=size, selection=selection)
            regions = regions.updated(rough, exact)
            selected = selection(regions)
        return regions.rows(selected)

    def classify(
        self, features: Tensor, proposals: Tensor, *, size: ScaledSize, selection: RegionSelection
    ) -> DetectedRegions:
        """Classify proposals, (N, 4) in scaled pixels, in float32; features: map, (1, C, h, w).

        On a CPU whole chunks are computed, so that features do not depend on the number of regions.
        """
        # a convolution of few regions adds in another order, on a GPU too, where chunks are larger
        missing = -len(proposals) % CHUNK if features.device.type == "cpu" else 0
        rois = batch_rois([torch.cat([proposals, proposals[-1:].expand(missing, -1)])])
        predictions = self.predict(features, rois, roi_size=selection.roi_size)
        regions = self.on_cpu(rois, predictions, size=size)
        return regions.rows(np.arange(len(proposals)))

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

    def on_cpu(
        self, rois: Tensor, predicted: RegionPredictions, *, size: ScaledSize
    ) -> DetectedRegions:
        """Copy predictions to the CPU at once, because each copy waits for a GPU; rois: (K, 5)."""
        attributes = rois[:, :0]
        if (logits := predicted.attribute_logits) is not None:
            # without "no attribute" the same attribute is first, with a higher probability
            is_foreground = self.meta.attribute_softmax == "foreground"
            each = logits[:, :-1].softmax(dim=1) if is_foreground else probabilities(logits)
            ids = logits[:, :-1].argmax(dim=1)
            attributes = torch.stack([ids.float(), each.amax(dim=1)], dim=1)
        parts = [rois[:, 1:], predicted.features, probabilities(predicted.class_logits), attributes]
        columns = torch.cat(parts, dim=1).cpu().numpy()
        widths = np.cumsum([part.shape[1] for part in parts[:-1]])
        boxes, vectors, classes, attribute = np.split(columns, widths, axis=1)
        is_exact = np.ones(len(boxes), bool)
        return DetectedRegions(size.unscaled(boxes), vectors, classes, attribute, is_exact)

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


def rows_of(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Return some rows of a tensor on any device."""
    return values[torch.from_numpy(rows).to(values.device)]


def probabilities(logits: Tensor) -> Tensor:
    """Return (K, classes) in [0, 1]: a softmax over all rows, without the background's."""
    return logits.softmax(dim=1)[:, :-1]


def chunk_on(device: torch.device) -> int:
    """Return the number of regions that pass res5 together."""
    return CHUNK if device.type == "cpu" else CHUNK_OF_GPU
