"""Validation of a detector: average precision, and recall of its proposals."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from a2cap.data.boxes import box_iou
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.errors import ConfigError
from a2cap.data.files.json_file import read_json
from a2cap.data.files.paths import require_file
from a2cap.extract.detector.detections import Detections, detect_objects, propose_regions
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import BATCH
from a2cap.extract.image import read_image
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.engine.artifact_names import DETECTOR_NAMES
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.training.detector.average_precision import detection_metrics, proposal_recall
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.detector.labelled_images import read_validation_data
from a2cap.pipeline.training.training_parts import Validation
from a2cap.pipeline.weights.detectors import resolve_weights

_OVERLAP = 0.5  # from which a detection has found a box


def family_ids(config: DetectorConfig, attributes: Sequence[str]) -> dict[str, list[int]]:
    """Return the ids of each family's attributes, named by them.

    Raises ConfigError for an attribute that the labels lack or that is named twice.
    """
    attribute_names = [name for names in config.attribute_families for name in names]
    if repeated := {name for name in attribute_names if attribute_names.count(name) > 1}:
        raise ConfigError(
            f"detector.attribute_families has {min(repeated)!r} twice; name each attribute once"
        )
    ids = {}
    for names in config.attribute_families:
        unknown = [name for name in names if name not in attributes]
        if unknown:
            raise ConfigError(
                f"detector.attribute_families has an attribute that the labels lack: "
                f"{unknown[0]!r}; they have {', '.join(attributes) or 'none'}"
            )
        ids["/".join(names)] = [attributes.index(name) for name in names]
    return ids


def attribute_accuracy(
    truth: DetectionData, detected: Mapping[str, Detections], families: Mapping[str, Sequence[int]]
) -> dict[str, float | None]:
    """Return the share of found objects whose most likely attribute of a family is right.

    An object is found by the first detection of its class with an IoU of at least 0.5; objects
    without an attribute of the family do not count. None where no object counts.
    """
    right: dict[str, list[bool]] = {family: [] for family in families}
    for image in truth.images:
        detections = detected[image.image_id]
        for index, row in _found_objects(image, detections).items():
            for family, ids in families.items():
                labelled = set(image.attribute_ids[index]) & set(ids)
                if labelled and detections.attribute_logits is not None:
                    best = ids[int(detections.attribute_logits[row, ids].argmax())]
                    right[family].append(best in labelled)
    return {family: float(np.mean(hits)) if hits else None for family, hits in right.items()}


def _found_objects(image: LabelledImage, detections: Detections) -> dict[int, int]:
    """Return the index of each found object and of its detection."""
    overlaps = box_iou(image.boxes, detections.boxes) >= _OVERLAP
    overlaps &= image.class_ids[:, None] == detections.class_ids
    overlaps &= ~image.crowd[:, None]
    return {index: int(row.argmax()) for index, row in enumerate(overlaps) if row.any()}


logger = logging.getLogger(__name__)

Result = TypeVar("Result")

RECALL_AT = (10, 36, 100)
"""Numbers of proposals at which recall is measured."""


@dataclass(frozen=True)
class DetectorValidation(Validation):
    """AP50 on the validation images, which selects the best epoch."""

    detector: TrainableDetector
    data: DetectionData
    config: DetectorConfig
    ranks: Ranks

    @property
    def selected_by(self) -> str:
        """Name of the figure that selects the best epoch."""
        return "AP50"

    def figures(self) -> dict[str, float]:
        """Return AP, AP50 and AP75: each rank detects in its images, the main rank scores all."""
        ranks = self.ranks
        share = self.data.images[ranks.rank :: ranks.count]
        by_id = detections_of(self.detector.frozen(), share, self.config, shown=ranks.is_main)
        shares = ranks.all_gather([(name, _to_tensors(objects)) for name, objects in by_id.items()])
        if not ranks.is_main:
            return ranks.all_gather({})[0]  # waits for the figures of the main rank
        everything = {name: _from_tensors(tensors) for share in shares for name, tensors in share}
        metrics = detection_metrics(self.data, everything)
        return ranks.all_gather({"AP": metrics.ap, "AP50": metrics.ap50, "AP75": metrics.ap75})[0]

    def warn(self, line: Mapping[str, float]) -> None:
        """Warn if no object was found at all."""
        if line[self.selected_by] == 0:
            logger.warning(
                "no labelled object is found yet: AP50 is 0; if that persists, check "
                "detector.labels and detector.anchor_sizes, or lower detector.lr"
            )


def detector_figures(
    detector: Detector, data: DetectionData, config: DetectorConfig
) -> dict[str, object]:
    """Return all figures of a detector as JSON, with the settings they were measured with."""
    by_id = detections_of(detector, data.images, config)
    metrics = detection_metrics(data, by_id)
    propose = partial(propose_regions, detector, count=max(RECALL_AT))
    proposals = _apply_to_images("propose", data.images, propose)
    recall = proposal_recall(data, proposals, counts=RECALL_AT)
    return {
        "AP": metrics.ap,
        "AP50": metrics.ap50,
        "AP75": metrics.ap75,
        "AP_small": metrics.ap_small,  # null if no box is that small
        "AP_medium": metrics.ap_medium,
        "AP_large": metrics.ap_large,
        "AP50_of_class": dict(metrics.per_class),
        "attribute_accuracy": attribute_accuracy(data, by_id, family_ids(config, data.attributes)),
        "proposal_recall": {str(count): share for count, share in recall.items()},
        "images": len(data.images),
        "proposals": config.validation_proposals,
        "roi_size": config.roi_size,
    }


def detections_of(
    detector: Detector,
    images: Sequence[LabelledImage],
    config: DetectorConfig,
    *,
    shown: bool = True,
) -> dict[str, Detections]:
    """Return the detections in each image by image id; raise InputError for an unreadable image.

    shown: as in `track`.
    """
    detect = partial(
        detect_objects, detector, proposals=config.validation_proposals, roi_size=config.roi_size
    )
    return _apply_to_images("detect", images, detect, shown=shown)


def _apply_to_images(
    title: str,
    images: Sequence[LabelledImage],
    find: Callable[[list[NDArray[np.uint8]]], list[Result]],
    *,
    shown: bool = True,
) -> dict[str, Result]:
    """Return the results of `find` on the pixels of a few images at once, by image id."""
    by_id: dict[str, Result] = {}
    with track(title, total=len(images), shown=shown) as progress:
        for start in range(0, len(images), BATCH):
            group = images[start : start + BATCH]
            results = find([read_image(image.file) for image in group])
            by_id.update(zip([image.image_id for image in group], results, strict=True))
            progress.advance(len(group))
    return by_id


def _to_tensors(objects: Detections) -> list[torch.Tensor]:
    """Return detections as tensors, which ranks can exchange, without attributes."""
    return [torch.from_numpy(part) for part in (objects.boxes, objects.scores, objects.class_ids)]


def _from_tensors(tensors: Sequence[torch.Tensor]) -> Detections:
    boxes, scores, class_ids = (part.numpy() for part in tensors)
    return Detections(boxes, scores, class_ids)


def evaluate_detector(
    config: DetectorConfig, runtime: RuntimeConfig, weights: str
) -> dict[str, object]:
    """Return the figures of a detector on the validation images.

    Raises WeightsError and InputError for unusable files, ConfigError for different classes.
    """
    device = prepare_device(runtime)
    path = require_file(resolve_weights(weights), "--weights")
    data = read_validation_data(config)
    detector = load_detector(path).to(device)
    classes = detector.architecture.classes
    if classes != len(data.classes):
        raise ConfigError(
            f"weights {weights!r} have {classes:,} classes, the labels {len(data.classes):,}; "
            "use the labels they were trained with"
        )
    _require_same_names(path, data)
    return detector_figures(detector, data, config)


def _require_same_names(path: Path, data: DetectionData) -> None:
    """Raise ConfigError if the class names beside the weights differ from the labels'."""
    names = path.with_name(DETECTOR_NAMES)
    content = read_json(names) if names.is_file() else None  # published weights have no such file
    classes = content.get("classes") if isinstance(content, dict) else None
    if not isinstance(classes, list) or len(classes) != len(data.classes):
        return
    for theirs, ours in zip(classes, data.classes, strict=True):
        if theirs != ours:
            raise ConfigError(
                f"classes of {str(path)!r} and of the labels differ: {theirs!r} and {ours!r}; "
                "use the labels they were trained with"
            )
