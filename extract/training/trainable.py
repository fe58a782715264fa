"""The detector in training: the graph of `a2 extract`, with losses.

Proposals and true boxes are classified as in extraction, with res5 on each pooled region
(Ren et al. 2015; Anderson et al. 2018, section 3.1).
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from a2cap.extract.detector.anchors import encode_boxes
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.proposals import ScoredAnchors, best_proposals
from a2cap.extract.detector.resnet import EPSILON, STRIDE, FrozenBatchNorm
from a2cap.extract.training.batch import LabelledBatch
from a2cap.extract.training.detector_losses import (
    AttributeLoss,
    DetectorLosses,
    Samples,
    box_loss,
    class_loss,
    objectness_loss,
)
from a2cap.extract.training.matching import (
    ANCHOR_RULE,
    BACKGROUND,
    IGNORED,
    REGION_RULE,
    match,
    sample,
)
from a2cap.extract.weights.load import assemble_detector

_COUNTERS = "num_batches_tracked"
"""Tensor of a trained batch normalisation that a frozen one lacks."""


@dataclass(frozen=True)
class Sampling:
    """Numbers of samples per image.

    anchors, regions: at most.
    anchor_positives, region_positives: largest foreground part of them.
    proposals: from which regions are sampled.
    roi_size: cells per side.
    """

    anchors: int
    anchor_positives: float
    proposals: int
    regions: int
    region_positives: float
    roi_size: int


class TrainableDetector(nn.Module):
    """A trainable copy of a detector.

    learns_norms: normalise by the statistics of batches; otherwise normalisations stay frozen, as
    is usual for fine-tuning.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        learns_norms: bool,
        attribute_loss: AttributeLoss = AttributeLoss(),  # noqa: B008 - it is immutable
    ) -> None:
        super().__init__()
        self._attribute_loss = attribute_loss
        self.detector = copy.deepcopy(detector).requires_grad_(True)
        if learns_norms:
            _replace_norms(self.detector)

    @property
    def meta(self) -> DetectorMeta:
        """Conventions in training and in use."""
        return self.detector.meta

    def frozen(self) -> Detector:
        """Return a copy with frozen normalisations, equal to this detector in evaluation mode."""
        tensors = {
            key: tensor.detach().clone()
            for key, tensor in self.detector.state_dict().items()
            if not key.endswith(_COUNTERS)
        }
        architecture, meta = self.detector.architecture, self.detector.meta
        return assemble_detector(tensors, architecture=architecture, meta=meta, name=meta.origin)

    def losses(
        self, batch: LabelledBatch, *, sampling: Sampling, generator: torch.Generator
    ) -> DetectorLosses:
        """Return the losses of a batch on this detector's device, in float32 also under autocast.

        generator: on the CPU; equal generators give equal samples.
        """
        features = self.detector.backbone(batch.images).float()
        scored = self.detector.proposal_generator.score(features, meta=self.meta)
        objectness, proposal_boxes = self._anchor_losses(scored, batch, sampling, generator)
        proposals = best_proposals(
            ScoredAnchors(scored.logits.detach(), scored.deltas.detach(), scored.anchors),
            sizes=batch.sizes,
            count=sampling.proposals,
            meta=self.meta,
        )
        regions, matches = _sampled_regions(proposals, batch, sampling, generator)
        sampled = self._targets(regions, matches, batch, weights=self.meta.bbox_weights)
        classes, boxes, attributes = self._region_losses(
            features, sampled, matches, batch, roi_size=sampling.roi_size
        )
        return DetectorLosses(objectness, proposal_boxes, classes, boxes, attributes)

    def _anchor_losses(
        self,
        scored: ScoredAnchors,
        batch: LabelledBatch,
        sampling: Sampling,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of objectness and boxes of the proposal network."""
        sampled_rows, matches = [], []
        for boxes, crowds, size in zip(batch.boxes, batch.crowds, batch.sizes, strict=True):
            matched = match(boxes, scored.anchors, crowds=crowds, rule=ANCHOR_RULE)
            matched = matched.masked_fill(_centred_outside(scored.anchors, size), IGNORED)
            taken = sample(
                matched,
                count=sampling.anchors,
                positive_fraction=sampling.anchor_positives,
                generator=generator,
            )
            sampled_rows.append(taken)
            matches.append(matched[taken])
        anchors = [scored.anchors[taken] for taken in sampled_rows]
        sampled = self._targets(anchors, matches, batch, weights=(1.0, 1.0, 1.0, 1.0))
        rows = sampled.images, torch.cat(sampled_rows)
        return (
            objectness_loss(scored.logits[rows], sampled),
            box_loss(scored.deltas[rows], sampled),
        )

    def _region_losses(
        self,
        features: Tensor,
        sampled: Samples,
        matches: list[Tensor],
        batch: LabelledBatch,
        *,
        roi_size: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of classes, boxes and attributes of sampled regions."""
        predictor = self.detector.roi_heads.box_predictor
        rois = torch.cat([sampled.images[:, None].to(sampled.boxes), sampled.boxes], dim=1)
        pooled = self.detector.pool(
            features, rois, size=roi_size, scale=1 / STRIDE, chunk=len(rois)
        )
        vectors = self.detector.roi_heads(torch.cat(list(pooled)))
        # a match of -1 finds the background, appended last
        class_ids = torch.cat(
            [
                F.pad(ids, (0, 1), value=self.meta.background_index)[matched]
                for matched, ids in zip(matches, batch.class_ids, strict=True)
            ]
        )
        deltas = predictor.bbox_pred(vectors).float()
        deltas = deltas.unflatten(1, (-1, 4))  # (K, 4 * classes) -> (K, classes, 4)
        # the background has no deltas of its own; its error is 0 whichever class it takes
        of_class = class_ids.clamp(max=deltas.shape[1] - 1)[:, None, None].expand(-1, 1, 4)
        of_attributes = vectors.new_zeros((), dtype=torch.float32)
        if predictor.has_attributes:
            rows = sampled.foreground
            logits = predictor.attribute_logits_of(vectors[rows], class_ids[rows]).float()
            attribute_ids = _attribute_ids(matches, batch)
            of_attributes = self._attribute_loss(
                logits, attribute_ids, sampled.images[rows], count=sampled.count
            )
        return (
            class_loss(predictor(vectors).float(), class_ids, sampled),
            box_loss(deltas.gather(1, of_class)[:, 0], sampled),
            of_attributes,
        )

    def _targets(
        self,
        boxes: list[Tensor],
        matches: list[Tensor],
        batch: LabelledBatch,
        *,
        weights: tuple[float, float, float, float],
    ) -> Samples:
        """Return sampled boxes of all images with the deltas to their true boxes, times weights."""
        deltas = [torch.zeros_like(b) for b in boxes]  # 0 for background
        for delta, regions, matched, true in zip(deltas, boxes, matches, batch.boxes, strict=True):
            rows = matched >= 0
            encoded = encode_boxes(true[matched[rows]], regions[rows], plus1=self.meta.decode_plus1)
            delta[rows] = encoded * encoded.new_tensor(weights)
        foreground = torch.cat(matches) >= 0
        counts = torch.tensor([len(matched) for matched in matches], device=foreground.device)
        images = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        return Samples(images, len(batch), torch.cat(boxes), torch.cat(deltas), foreground)


def _sampled_regions(
    proposals: list[Tensor], batch: LabelledBatch, sampling: Sampling, generator: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Sample regions of each image, (K, 4), with the indices of their true boxes, (K,)."""
    regions, matches = [], []
    for proposed, boxes, crowds, size in zip(
        proposals, batch.boxes, batch.crowds, batch.sizes, strict=True
    ):
        # true boxes too: early proposals rarely overlap one by half
        candidates = torch.cat([boxes, proposed])
        if not len(candidates):
            candidates = boxes.new_tensor([[0, 0, size.width, size.height]])
        matched = match(boxes, candidates, crowds=crowds, rule=REGION_RULE)
        taken = sample(
            matched,
            count=sampling.regions,
            positive_fraction=sampling.region_positives,
            generator=generator,
        )
        regions.append(candidates[taken])
        matches.append(matched[taken])
    return regions, matches


def _attribute_ids(matches: list[Tensor], batch: LabelledBatch) -> Tensor:
    """Return the attributes of foreground regions, (K, A) of all images together."""
    widest = max(ids.shape[1] for ids in batch.attribute_ids)
    return torch.cat(
        [
            F.pad(ids, (0, widest - ids.shape[1]), value=BACKGROUND)[matched[matched >= 0]]
            for matched, ids in zip(matches, batch.attribute_ids, strict=True)
        ]
    )


def _centred_outside(anchors: Tensor, size: ScaledSize) -> Tensor:
    """Return (N,) bool, True where an anchor is in the padding of the batch."""
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    return (centres >= centres.new_tensor([size.width, size.height])).any(dim=1)


def _replace_norms(detector: Detector) -> None:
    for module in list(detector.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, FrozenBatchNorm):
                norm = nn.BatchNorm2d(len(child.weight), eps=EPSILON).to(child.weight.device)
                norm.load_state_dict(child.state_dict(), strict=False)
                setattr(module, name, norm)
