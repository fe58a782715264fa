"""Accuracy of a detector's attributes, per family of exclusive ones such as colours."""

from collections.abc import Mapping, Sequence

import numpy as np

from a2cap.data.boxes import box_iou
from a2cap.data.detection.labels import DetectionData, LabelledImage
from a2cap.data.errors import ConfigError
from a2cap.extract.detector.detections import Detections
from a2cap.pipeline.training.detector.config import DetectorConfig

_OVERLAP = 0.5  # from which a detection has found a box


def family_ids(config: DetectorConfig, attributes: Sequence[str]) -> dict[str, list[int]]:
    """Return the ids of each family's attributes, named by them.

    Raises ConfigError for an attribute that the labels lack or that is named twice.
    """
    named = [name for names in config.attribute_families for name in names]
    if repeated := {name for name in named if named.count(name) > 1}:
        raise ConfigError(
            f"detector.attribute_families has {min(repeated)!r} twice; name each attribute once"
        )
    found = {}
    for names in config.attribute_families:
        unknown = [name for name in names if name not in attributes]
        if unknown:
            raise ConfigError(
                f"detector.attribute_families has an attribute that the labels lack: "
                f"{unknown[0]!r}; they have {', '.join(attributes) or 'none'}"
            )
        found["/".join(names)] = [attributes.index(name) for name in names]
    return found


def attribute_accuracy(
    truth: DetectionData,
    found: Mapping[str, Detections],
    families: Mapping[str, Sequence[int]],
) -> dict[str, float | None]:
    """Return the share of found objects whose most likely attribute of a family is right.

    An object is found by the first detection of its class with an IoU of at least 0.5; objects
    without an attribute of the family do not count. None where no object counts.
    """
    right: dict[str, list[bool]] = {family: [] for family in families}
    for image in truth.images:
        detections = found[image.image_id]
        for index, row in _found_objects(image, detections).items():
            for family, ids in families.items():
                given = set(image.attribute_ids[index]) & set(ids)
                if given and detections.attribute_logits is not None:
                    best = ids[int(detections.attribute_logits[row, ids].argmax())]
                    right[family].append(best in given)
    return {family: float(np.mean(some)) if some else None for family, some in right.items()}


def _found_objects(image: LabelledImage, detections: Detections) -> dict[int, int]:
    """Return the index of each found object and of its detection."""
    overlaps = box_iou(image.boxes, detections.boxes) >= _OVERLAP
    overlaps &= image.class_ids[:, None] == detections.class_ids
    overlaps &= ~image.crowd[:, None]
    return {index: int(row.argmax()) for index, row in enumerate(overlaps) if row.any()}
