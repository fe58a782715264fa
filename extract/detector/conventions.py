"""Conventions of a set of detector weights (its "meta"), stored with the weights.

The public detectors share one graph but differ in anchors, pixel conventions and class order.
With the wrong conventions they run without an error and give worse features.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, SerializerFunctionWrapHandler, model_serializer

from a2cap.data.data_config import Section
from a2cap.extract.detector.anchors import caffe_anchors, detectron2_anchors
from a2cap.extract.detector.resnet import STRIDE

Procedure = Literal["caffe", "detectron2"]
LastStage = Literal["dilated", "strided"]
RegionPooling = Literal["maximum", "bilinear"]


class DetectorMeta(Section):
    """The conventions of a set of weights. None may be guessed; the last two may be unstated."""

    origin: str
    """Source of the weights."""
    anchors: tuple[tuple[float, float, float, float], ...]
    """Boxes, x1 y1 x2 y2, in the order of the proposal network's channels."""
    anchor_order: Literal["ratio-major", "size-major"]
    """Order of the anchors; stated for readers, only the anchors themselves are used."""
    decode_plus1: bool
    """True if an anchor includes its last pixel, so that it is x2 - x1 + 1 wide."""
    decode_limit: bool
    """True if a box is at most 62.5 times as long as its anchor's sides (log(1000 / 16))."""
    clip_minus1: bool
    """True if proposals are clipped at the last pixel's index (W - 1), not the edge (W)."""
    min_size_rule: Literal["16 original pixels, before ranking", "not empty, after ranking"]
    """Rule by which small proposals are dropped."""
    nms_plus1: bool
    """True if overlaps are measured on boxes that include their last pixel."""
    resize: Literal["exact factor", "rounded size"]
    """Scaling of images: cv2.resize by a factor on floats, or Pillow's antialiased resize of bytes
    to a rounded size."""
    scale: tuple[int, int]
    """Shorter side and limit of the longer one, in pixels, in training."""
    mean: tuple[float, float, float]
    """Subtracted from blue, green and red."""
    stem_pool: Literal["no padding, rounded up", "padding 1"]
    """The 3x3 maximum after the first convolution: caffe's, or detectron2's."""
    last_stage: LastStage
    """Stage res5: keeps the pooled region's resolution and dilates, or halves it."""
    region_pooling: RegionPooling
    """RoIPool (Girshick 2015), or RoIAlign with aligned corners (He et al. 2017)."""
    bbox_weights: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]
    """Divisors of the box regression's dx, dy, dw, dh; features do not depend on them."""
    background_index: int
    """Row of the background among the classes: the number of classes, because canonical
    tensors hold it last."""
    attribute_softmax: Literal["all", "foreground"]
    """Rows in the softmax of attribute confidences: with or without "no attribute". The
    top-scoring attribute is the same."""
    roi_size: int | None = None
    """Cells per side into which regions were pooled in training; not stated by older files."""
    proposals: int | None = None
    """Proposals that were classified per image in validation; not stated by older files."""

    @model_serializer(mode="wrap")
    def _without_unstated(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # left out rather than null, so that earlier files keep their bytes and their digest
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if value is not None}

    def with_procedure(self, procedure: Procedure) -> "DetectorMeta":
        """Return the conventions of the same weights in another extractor's procedure.

        Anchors, pooling and strides are part of the weights and stay.
        """
        conventions = _CAFFE_PROCEDURE if procedure == "caffe" else _DETECTRON2_PROCEDURE
        return self.model_copy(update=conventions)


CAFFE_MEAN = (102.9801, 115.9465, 122.7717)
"""From bottom-up-attention @514e561, lib/fast_rcnn/config.py."""

DETECTRON2_MEAN = (103.53, 116.28, 123.675)
"""From detectron2 @02b5c4e, detectron2/config/defaults.py."""

_CAFFE_PROCEDURE: dict[str, Any] = {
    "decode_limit": False,
    "clip_minus1": True,
    "min_size_rule": "16 original pixels, before ranking",
    "nms_plus1": True,
    "resize": "exact factor",
}
_DETECTRON2_PROCEDURE: dict[str, Any] = {
    "decode_limit": True,
    "clip_minus1": False,
    "min_size_rule": "not empty, after ranking",
    "nms_plus1": False,
    "resize": "rounded size",
}


def caffe_meta(*, origin: str, classes: int) -> DetectorMeta:
    """Return the conventions of the published caffe model."""
    return DetectorMeta(
        origin=origin,
        anchors=as_anchors(caffe_anchors()),
        anchor_order="ratio-major",
        decode_plus1=True,
        **_CAFFE_PROCEDURE,
        scale=(600, 1000),
        mean=CAFFE_MEAN,
        stem_pool="no padding, rounded up",
        last_stage="dilated",
        region_pooling="maximum",
        bbox_weights=(1, 1, 1, 1),
        background_index=classes,
        attribute_softmax="all",
    )


def airsplay_meta(*, origin: str, classes: int) -> DetectorMeta:
    """Return caffe's conventions with the anchors and box weights of airsplay's conversion."""
    # Unknown: whether the conversion, whose source is unpublished, folded caffe's shift of 8 pixels
    # into the weights.
    return caffe_meta(origin=origin, classes=classes).model_copy(
        update={
            "anchors": as_anchors(detectron2_anchors(sizes=(64, 128, 256, 512))),
            "anchor_order": "size-major",
            "decode_plus1": False,
            "bbox_weights": (10.0, 10.0, 5.0, 5.0),
            "attribute_softmax": "foreground",
        }
    )


def detectron2_meta(*, origin: str, classes: int) -> DetectorMeta:
    """Return the conventions of detectron2's model zoo (COCO-Detection/faster_rcnn_R_101_C4_3x)."""
    conventions = {
        "anchors": as_anchors(detectron2_anchors(sizes=(32, 64, 128, 256, 512))),
        "scale": (800, 1333),
        "mean": DETECTRON2_MEAN,
        "stem_pool": "padding 1",
        "last_stage": "strided",
        "region_pooling": "bilinear",
    }
    meta = airsplay_meta(origin=origin, classes=classes).with_procedure("detectron2")
    return meta.model_copy(update=conventions)


def custom_meta(
    *,
    origin: str,
    classes: int,
    sizes: Sequence[float],
    ratios: Sequence[float],
    scale: tuple[int, int],
    last_stage: LastStage,
    region_pooling: RegionPooling,
    roi_size: int,
    proposals: int,
) -> DetectorMeta:
    """Return the conventions of a newly trained detector: detectron2's with other anchors.

    sizes: square roots of the anchors' areas in scaled pixels.
    ratios: their height over width.
    """
    # centred in their cells, where detectron2's anchors are centred on a corner
    anchors = detectron2_anchors(sizes=sizes, ratios=ratios, centre=STRIDE / 2)
    conventions = {
        "anchors": as_anchors(anchors),
        "scale": scale,
        "last_stage": last_stage,
        "region_pooling": region_pooling,
        "attribute_softmax": "all",
        "roi_size": roi_size,
        "proposals": proposals,
    }
    return detectron2_meta(origin=origin, classes=classes).model_copy(update=conventions)


def as_anchors(boxes: NDArray[np.floating]) -> tuple[tuple[float, float, float, float], ...]:
    """Return the rows of an (A, 4) array as plain numbers."""
    return tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in boxes)
