"""Sizes, configurations and conventions of detectors small enough for quick tests."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from a2cap.data.detection.labels import LabelledImage
from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import DetectorMeta, custom_meta
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extract_config import ExtractConfig
from tests.data.messages import message_of

refusal = partial(message_of, error=WeightsError)

TINY = Architecture(
    depth=18,
    width=8,
    classes=12,
    attributes=5,
    proposal_width=16,
    embedding_width=4,
    attribute_width=8,
)
CONFIG = ExtractConfig(
    min_side=192,
    max_side=320,
    proposals=60,
    min_regions=5,
    max_regions=20,
    roi_size=7,
    precision="exact",
)


def tiny_meta(*, classes: int = 3, sizes: tuple[int, ...] = (16, 32), side: int = 96):
    """Return conventions with square anchors for images of 64 to `side` pixels."""
    return custom_meta(
        origin="test",
        classes=classes,
        sizes=sizes,
        ratios=(1.0,),
        scale=(64, side),
        last_stage="strided",
        region_pooling="maximum",
        roi_size=7,
        proposals=20,
    )


def labelled(boxes, *, class_ids=None, attribute_ids=None, crowd=None) -> LabelledImage:
    """Return labels with classes 0, 1, ..., without attributes and crowds if none are given."""
    count = len(boxes)
    return LabelledImage(
        image_id="1",
        file=Path("1.png"),
        width=0,
        height=0,
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        class_ids=np.array(range(count) if class_ids is None else class_ids, np.int64),
        attribute_ids=tuple(attribute_ids or [()] * count),
        crowd=np.array([False] * count if crowd is None else crowd, np.bool_),
    )


def with_meta(detector, meta: DetectorMeta):
    """Return the same weights with other conventions."""
    from a2cap.extract.weights.load import assemble_detector

    return assemble_detector(
        detector.state_dict(), architecture=detector.architecture, meta=meta, name="changed"
    )


def seeded(seed: int = 0) -> torch.Generator:
    """Return a generator on the CPU."""
    return torch.Generator().manual_seed(seed)


def relative(actual, expected) -> float:
    """Return the difference of two tensors relative to the expected one."""
    return float((actual - expected).norm() / expected.norm())
