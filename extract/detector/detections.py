"""What a detector sees in images: things with a class, a score and a box of their own.

Features belong to proposals as they are (`a2cap.extract.detector.selection`); here boxes are
refined by class
and suppressed within it, as detectors are judged (Ren et al. 2015, section 3.3).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.extract.detector.boxes import decode_boxes
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import ScaledSize, scaled_image
from a2cap.extract.detector.proposals import clip_boxes, growth_limit, suppress

AnnotatedImage = NDArray[np.uint8]

BATCH = 8
"""Images of one scaled size that pass the backbone together."""


@dataclass(frozen=True)
class Detections:
    """K things found in one image, best first.

    boxes: (K, 4) float32, x1 y1 x2 y2 in the image's own pixels; scores: (K,) float32 in [0, 1];
    class_ids: (K,) int64 from 0; attribute_ids: (K,) int64, or None without an attribute head.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int64]
    attribute_ids: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True)
class DetectionRule:
    """Which boxes count as found.

    confidence: least score; overlap: from which a worse box of the same class is dropped; most:
    things per image.
    """

    confidence: float = 0.05
    overlap: float = 0.5
    most: int = 100


USUAL_RULE = DetectionRule()
"""Of py-faster-rcnn, detectron2 and torchvision, by which published AP is measured."""


def detect_objects(
    detector: Detector,
    images: Sequence[AnnotatedImage],
    *,
    proposals: int,
    roi_size: int,
    rule: DetectionRule = USUAL_RULE,
) -> list[Detections]:
    """Things in images, in order; each image as if it had been alone.

    images: (H, W, 3) uint8 BGR each, scaled as `detector.meta` says; proposals: regions looked
    at; roi_size: cells per side into which they are pooled, as in training. Raises InputError
    where an image is too thin.
    """
    found: dict[int, Detections] = {}
    with torch.inference_mode():
        for seen in _mapped(detector, images, proposals=proposals):
            rois = [
                torch.cat([boxes.new_full((len(boxes), 1), index), boxes], dim=1)
                for index, boxes in enumerate(seen.proposals)
            ]
            heads = _head_outputs(detector, seen.features, torch.cat(rois), roi_size=roi_size)
            counts = [len(boxes) for boxes in seen.proposals]
            parts = zip(*(torch.split(part, counts) for part in heads), strict=True)
            for index, size, boxes, of_image in zip(
                seen.indices, seen.sizes, seen.proposals, parts, strict=True
            ):
                found[index] = _detections(detector, boxes, of_image, size=size, rule=rule)
    return [found[index] for index in range(len(images))]


def propose_regions(
    detector: Detector, images: Sequence[AnnotatedImage], *, count: int
) -> list[NDArray[np.float32]]:
    """Proposals of each image, best first: (N, 4) float32 in its own pixels, N <= count."""
    found: dict[int, NDArray[np.float32]] = {}
    with torch.inference_mode():
        for seen in _mapped(detector, images, proposals=count):
            for index, size, boxes in zip(seen.indices, seen.sizes, seen.proposals, strict=True):
                found[index] = _in_own_pixels(boxes, size)
    return [found[index] for index in range(len(images))]


@dataclass(frozen=True)
class _Seen:
    """Some images of one size: their places, sizes, maps (B, C, h, w) and proposals (N, 4)."""

    indices: list[int]
    sizes: list[ScaledSize]
    features: Tensor
    proposals: list[Tensor]


def _mapped(
    detector: Detector, images: Sequence[AnnotatedImage], *, proposals: int
) -> Iterator[_Seen]:
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, image in enumerate(images):
        groups[image.shape].append(index)
    for members in groups.values():
        for start in range(0, len(members), BATCH):
            indices = members[start : start + BATCH]
            yield _seen(detector, indices, [images[index] for index in indices], proposals)


def _seen(
    detector: Detector, indices: list[int], images: Sequence[AnnotatedImage], proposals: int
) -> _Seen:
    meta, device = detector.meta, next(detector.parameters()).device
    min_side, max_side = meta.scale
    scaled = [scaled_image(one, min_side=min_side, max_side=max_side, meta=meta) for one in images]
    sizes = [size for _, size in scaled]
    blobs = torch.from_numpy(np.stack([blob for blob, _ in scaled])).to(device)
    features = detector(blobs)
    found = detector.proposal_generator(features, sizes=sizes, count=proposals, meta=meta)
    return _Seen(indices, sizes, features, found)


def _head_outputs(
    detector: Detector, features: Tensor, rois: Tensor, *, roi_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Features (K, F), class logits (K, classes + 1) and shifts (K, classes, 4) of regions."""
    described = detector.describe(features, rois, roi_size=roi_size)
    shifts = detector.roi_heads.box_predictor.bbox_pred(described.features)
    return described.features, described.class_logits, shifts.unflatten(1, (-1, 4))


def _detections(
    detector: Detector,
    proposals: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    *,
    size: ScaledSize,
    rule: DetectionRule,
) -> Detections:
    """Of one image. proposals: (N, 4) in scaled pixels; heads: as `_head_outputs` gives them."""
    features, logits, shifts = heads
    probabilities = logits.softmax(dim=1)[:, :-1]
    regions, class_ids = (probabilities >= rule.confidence).nonzero(as_tuple=True)
    scores = probabilities[regions, class_ids]
    boxes = refined_boxes(
        shifts[regions, class_ids], proposals[regions], size=size, meta=detector.meta
    )
    kept = _suppressed(boxes, scores, class_ids, rule=rule, meta=detector.meta)
    attribute_ids = _attributes(detector, features[regions[kept]], class_ids[kept])
    return Detections(
        boxes=_in_own_pixels(boxes[kept], size),
        scores=scores[kept].cpu().numpy(),
        class_ids=class_ids[kept].cpu().numpy(),
        attribute_ids=None if attribute_ids is None else attribute_ids.cpu().numpy(),
    )


def refined_boxes(
    shifts: Tensor, proposals: Tensor, *, size: ScaledSize, meta: DetectorMeta
) -> Tensor:
    """Proposals moved by their class's shifts, inside the image; all (K, 4), scaled pixels."""
    deltas = shifts / shifts.new_tensor(meta.bbox_weights)
    boxes = decode_boxes(deltas, proposals, plus1=meta.decode_plus1, limit=growth_limit(meta))
    return clip_boxes(boxes, size=size, meta=meta)


def _suppressed(
    boxes: Tensor, scores: Tensor, class_ids: Tensor, *, rule: DetectionRule, meta: DetectorMeta
) -> Tensor:
    """Indices of what stays, best first."""
    kept = [class_ids.new_zeros(0)]
    for class_id in torch.unique(class_ids):
        rows = (class_ids == class_id).nonzero()[:, 0]
        kept.append(rows[suppress(boxes[rows], scores[rows], threshold=rule.overlap, meta=meta)])
    together = torch.cat(kept).sort().values
    ranked = scores[together].argsort(descending=True, stable=True)
    return together[ranked[: rule.most]]


def _attributes(detector: Detector, features: Tensor, class_ids: Tensor) -> Tensor | None:
    predictor = detector.roi_heads.box_predictor
    if not predictor.has_attributes:
        return None
    return predictor.attribute_logits_of(features, class_ids)[:, :-1].argmax(dim=1)


def _in_own_pixels(boxes: Tensor, size: ScaledSize) -> NDArray[np.float32]:
    factors = np.tile(np.array(size.factors, np.float32), 2)
    return np.asarray(boxes.cpu().numpy() / factors, np.float32)
