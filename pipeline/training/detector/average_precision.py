"""Average precision of a detector as COCO defines it, and recall of its proposals.

Average precision is computed by pycocotools (Lin et al. 2014, arXiv:1405.0312) with at most 100
detections per class and image. Small, medium and large are decided by the area of the box; COCO's
published figures use the area of the outline. All images must have an entry in the results.
"""

import contextlib
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from a2cap.data.boxes import box_iou
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.errors import InputError
from a2cap.extract.detector.detections import Detections

_MOST_DETECTIONS = 100  # per class and image
_ALL, _SMALL, _MEDIUM, _LARGE = range(4)  # areas, in the order of pycocotools
_AT_50, _AT_75 = 0, 5  # overlaps, indices in pycocotools' 0.5, 0.55, ..., 0.95

_Table = NDArray[np.float64]
_Annotations = list[dict[str, object]]  # boxes in COCO's form


@dataclass(frozen=True)
class DetectionMetrics:
    """Figures in [0, 1], each a mean over the classes that have a box to find."""

    ap: float  # mean over the overlaps 0.5, 0.55, ..., 0.95
    ap50: float
    ap75: float
    ap_small: float | None  # of boxes up to 32 x 32 pixels, None without such boxes
    ap_medium: float | None  # up to 96 x 96
    ap_large: float | None
    per_class: Mapping[str, float]  # AP at 0.5 by class name


def detection_metrics(truth: DetectionData, detected: Mapping[str, Detections]) -> DetectionMetrics:
    """Score the detections in the images of `truth`; ignore other images in `detected`.

    A detection inside a crowd of its class counts neither way. Raises InputError for images
    without a box to find.
    """
    scored = _scored(truth, detected)
    precision = np.stack(list(scored.values()))  # (C, 10, 101, 4)
    return DetectionMetrics(
        ap=float(precision[..., _ALL].mean()),
        ap50=float(precision[:, _AT_50, :, _ALL].mean()),
        ap75=float(precision[:, _AT_75, :, _ALL].mean()),
        ap_small=_mean_of_known(precision[..., _SMALL]),
        ap_medium=_mean_of_known(precision[..., _MEDIUM]),
        ap_large=_mean_of_known(precision[..., _LARGE]),
        per_class={
            truth.classes[class_id]: float(of_class[_AT_50, :, _ALL].mean())
            for class_id, of_class in scored.items()
        },
    )


def proposal_recall(
    truth: DetectionData,
    proposals: Mapping[str, NDArray[np.float32]],
    counts: Sequence[int] = (10, 36, 100),
    overlap: float = 0.5,
) -> dict[int, float]:
    """Return the share of boxes that one of an image's first n proposals overlaps, for each n.

    proposals: image id -> (P, 4) x1 y1 x2 y2 in pixels, best first.
    overlap: least intersection over union. Crowds are ignored.
    Raises InputError for images without a box to find.
    """
    firsts = [_first_matches(image, proposals[image.image_id], overlap) for image in truth.images]
    first = np.concatenate([np.zeros(0), *firsts])
    if not len(first):
        raise _nothing_to_find(truth)
    return {count: float((first < count).mean()) for count in counts}


def _first_matches(image: LabelledImage, proposals: NDArray[np.float32], overlap: float) -> _Table:
    """Return the index of the first proposal on each box that is not a crowd, (N,); else inf."""
    boxes = image.boxes[~image.crowd]
    proposal, box = np.nonzero(box_iou(proposals, boxes) >= overlap)
    first = np.full(len(boxes), np.inf)
    np.minimum.at(first, box, proposal)
    return first


def _scored(truth: DetectionData, detected: Mapping[str, Detections]) -> dict[int, _Table]:
    """Return the precision of each class that has a box to find, ordered by class id."""
    curves = {
        class_id: _precision(boxes, detections)
        for class_id, (boxes, detections) in sorted(_by_class(truth, detected).items())
        if boxes
    }
    scored = {class_id: curve for class_id, curve in curves.items() if curve[..., _ALL].min() >= 0}
    if not scored:
        raise _nothing_to_find(truth)
    return scored


def _by_class(
    truth: DetectionData, detected: Mapping[str, Detections]
) -> dict[int, tuple[_Annotations, _Annotations]]:
    """Return the boxes to find and the detections of each class."""
    classes: dict[int, tuple[_Annotations, _Annotations]] = defaultdict(lambda: ([], []))
    # numbered in the order of ids, not of the data: these numbers rank detections of equal score
    ordered = sorted(truth.images, key=lambda image: image.image_id)
    for number, image in enumerate(ordered, start=1):
        labels = zip(image.boxes, image.class_ids, image.crowd, strict=True)
        for box, class_id, crowd in labels:
            _add(classes[int(class_id)][0], number, box, iscrowd=int(crowd))
        seen = detected[image.image_id]
        for box, class_id, score in zip(seen.boxes, seen.class_ids, seen.scores, strict=True):
            _add(classes[int(class_id)][1], number, box, score=float(score), iscrowd=0)
    return classes


def _add(annotations: _Annotations, image: int, box: NDArray[np.float32], **values: float) -> None:
    x1, y1, x2, y2 = map(float, box)
    width, height = x2 - x1, y2 - y1
    annotations.append(
        {
            "id": len(annotations) + 1,  # pycocotools ignores a match with id 0
            "image_id": image,
            "category_id": 1,
            "bbox": [x1, y1, width, height],
            "area": width * height,
            **values,
        }
    )


def _precision(truth: _Annotations, detected: _Annotations) -> _Table:
    """Return the precision of one class, (10 overlaps, 101 recalls, 4 areas)."""
    # All classes at once give the same numbers, but pycocotools then keeps an entry for each class
    # in each image, with 1,600 classes nearly all empty: so only images with the class, class by
    # class.
    images = list({item["image_id"]: None for item in (*truth, *detected)})
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(_indexed(truth, images), _indexed(detected, images), "bbox")
        evaluation.params.maxDets = [_MOST_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision: _Table = evaluation.eval["precision"][:, :, 0, :, 0]
    return precision


def _indexed(annotations: _Annotations, images: Sequence[object]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in images],
        "annotations": annotations,
        "categories": [{"id": 1}],
    }
    coco.createIndex()
    return coco


def _mean_of_known(precision: _Table) -> float | None:
    defined = precision[precision >= 0]  # -1: the class has no box of such an area
    return float(defined.mean()) if len(defined) else None


def _nothing_to_find(truth: DetectionData) -> InputError:
    return InputError(
        f"no box to find in {len(truth.images):,} images; score on images with labels"
    )
