"""Object detection: objects in images, each with a class, a score and a box.

Features belong to the boxes of proposals (`a2cap.extract.detector.region_selection`). Detections
have boxes refined by class and suppressed within it (Ren et al. 2015, section 3.3), by which
detectors are evaluated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.extract.detector.anchors import decode_boxes
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import Pixels, ScaledSize, batches_of_one_size, scaled_batch
from a2cap.extract.detector.proposals import batch_rois, clip_boxes, delta_limit
from a2cap.extract.detector.suppression import suppress

LEAST_SCORE, MOST_OVERLAP, MOST_OBJECTS = 0.05, 0.5, 100
"""Minimum score; overlap above which a box yields to a higher-scoring one of its class; objects per
image. All are those of py-faster-rcnn, detectron2 and torchvision."""


@dataclass(frozen=True)
class Detections:
    """K objects of one image, by falling score.

    boxes: (K, 4) float32, x1 y1 x2 y2 in the image's own pixels.
    scores: (K,) float32 in [0, 1].
    class_ids: (K,) int64 from 0.
    attribute_logits: (K, attributes) float32, or None without an attribute head.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int64]
    attribute_logits: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)


def detect_objects(
    detector: Detector, images: Sequence[Pixels], *, proposals: int, roi_size: int
) -> list[Detections]:
    """Detect the objects of each image, in order; the result equals that of each image alone
    to float32 rounding.

    images: (H, W, 3) uint8 BGR each, scaled as `detector.meta` states.
    proposals: regions that are classified.
    roi_size: cells per side into which they are pooled, as in training.
    Raises InputError where an image is too thin.
    """
    detections: dict[int, Detections] = {}
    predictor = detector.roi_heads.box_predictor
    with torch.inference_mode():
        for indices, sizes, maps, proposed in _proposed(detector, images, count=proposals):
            predictions = detector.predict(maps, batch_rois(proposed), roi_size=roi_size)
            outputs = (
                predictions.features,
                predictions.class_logits,
                predictor.bbox_pred(predictions.features).unflatten(1, (-1, 4)),
            )
            counts = [len(boxes) for boxes in proposed]
            parts = zip(*(torch.split(part, counts) for part in outputs), strict=True)
            for index, size, boxes, output in zip(indices, sizes, proposed, parts, strict=True):
                detections[index] = _detections(detector, boxes, output, size=size)
    return [detections[index] for index in range(len(images))]


def propose_regions(
    detector: Detector, images: Sequence[Pixels], *, count: int
) -> list[NDArray[np.float32]]:
    """Return the proposals of each image: (N, 4) float32 in its own pixels, by falling score.

    N is at most count.
    """
    proposals: dict[int, NDArray[np.float32]] = {}
    with torch.inference_mode():
        for indices, sizes, _, proposed in _proposed(detector, images, count=count):
            for index, size, boxes in zip(indices, sizes, proposed, strict=True):
                proposals[index] = size.unscaled(boxes.cpu().numpy())
    return [proposals[index] for index in range(len(images))]


def _proposed(
    detector: Detector, images: Sequence[Pixels], *, count: int
) -> Iterator[tuple[list[int], list[ScaledSize], Tensor, list[Tensor]]]:
    """Yield indices, sizes, maps (B, C, h, w) and proposals (N, 4) of images of one size."""
    meta, device = detector.meta, next(detector.parameters()).device
    for indices in batches_of_one_size(dict(enumerate(images))):
        blobs, sizes = scaled_batch(
            [images[index] for index in indices], scale=meta.scale, meta=meta
        )
        maps = detector.backbone(torch.from_numpy(np.stack(blobs)).to(device))
        proposed = detector.proposal_generator(maps, sizes=sizes, count=count, meta=meta)
        yield indices, sizes, maps, proposed


def _detections(
    detector: Detector,
    proposals: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
    *,
    size: ScaledSize,
) -> Detections:
    """Return the detections of one image among its proposals, (N, 4) in scaled pixels."""
    features, logits, deltas = outputs  # (N, F), (N, classes + 1), (N, classes, 4)
    probabilities = logits.softmax(dim=1)[:, :-1]
    # one proposal may be found as objects of several classes
    regions, class_ids = (probabilities >= LEAST_SCORE).nonzero(as_tuple=True)
    scores = probabilities[regions, class_ids]
    boxes = refined_boxes(
        deltas[regions, class_ids], proposals[regions], size=size, meta=detector.meta
    )
    kept = _suppress_by_class(boxes, scores, class_ids, meta=detector.meta)
    predictor, attribute_logits = detector.roi_heads.box_predictor, None
    if predictor.has_attributes:
        logits = predictor.attribute_logits_of(features[regions[kept]], class_ids[kept])
        attribute_logits = logits[:, :-1].cpu().numpy()
    return Detections(
        boxes=size.unscaled(boxes[kept].cpu().numpy()),
        scores=scores[kept].cpu().numpy(),
        class_ids=class_ids[kept].cpu().numpy(),
        attribute_logits=attribute_logits,
    )


def refined_boxes(
    deltas: Tensor, proposals: Tensor, *, size: ScaledSize, meta: DetectorMeta
) -> Tensor:
    """Refine proposals by the box deltas of a class and clip; all (K, 4), scaled pixels."""
    weighted = deltas / deltas.new_tensor(meta.bbox_weights)
    boxes = decode_boxes(weighted, proposals, plus1=meta.decode_plus1, limit=delta_limit(meta))
    return clip_boxes(boxes, size=size, meta=meta)


def _suppress_by_class(
    boxes: Tensor, scores: Tensor, class_ids: Tensor, *, meta: DetectorMeta
) -> Tensor:
    """Return the indices of the boxes that are kept, by falling score."""
    if not len(boxes):
        return class_ids
    # Moved apart by class, so that boxes of two classes never overlap; float64, whose 53 bits keep
    # the sides of a box exact at any offset.
    apart = boxes.double() + class_ids[:, None] * (boxes.max().double() + 2)
    scores = scores.double()
    return suppress(apart, scores, threshold=MOST_OVERLAP, most=MOST_OBJECTS, meta=meta)
