"""Conventions that belong to a set of weights, stated beside them and never guessed.

The public detectors share one graph but differ in anchors, pixel conventions and class order;
read with the wrong ones they run without an error and give worse features.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

from a2.extract.anchors import caffe_anchors, detectron2_anchors


class DetectorMeta(BaseModel):
    """Every convention has to be named: no field has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    origin: str
    """Where the weights come from, in words."""
    anchors: tuple[tuple[float, float, float, float], ...]
    """A boxes, x1 y1 x2 y2, in the order of the proposal network's channels."""
    anchor_order: Literal["ratio-major", "size-major"]
    """How anchors are ordered; stated for readers, the anchors themselves decide."""
    decode_plus1: bool
    """Whether an anchor includes its last pixel, so that it is x2 - x1 + 1 wide."""
    clip_minus1: bool
    """Whether proposals end at the last pixel's index (W - 1) instead of the edge (W)."""
    min_size_rule: Literal["16 original pixels, before ranking"]
    """Which small proposals are dropped, and when."""
    nms_plus1: bool
    """Whether overlaps are measured on boxes that include their last pixel."""
    resize: Literal["exact factor"]
    """How a picture is scaled: cv2.resize by its factor, not to a rounded size."""
    scale: tuple[int, int]
    """Shorter side and limit of the longer one, in pixels, for which the weights were made."""
    mean: tuple[float, float, float]
    """Subtracted from blue, green and red."""
    bbox_weights: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]
    """Divisors of the box regression's dx, dy, dw, dh; features do not depend on them."""
    background_index: int
    """Row of the background among the classes: the number of classes, because canonical
    tensors hold it last."""
    attribute_softmax: Literal["all", "foreground"]
    """Whether attribute confidences count "no attribute"; the chosen attribute does not change."""


CAFFE_MEAN = (102.9801, 115.9465, 122.7717)


def caffe_meta(*, origin: str, classes: int) -> DetectorMeta:
    """Conventions of the published caffe model."""
    return DetectorMeta(
        origin=origin,
        anchors=tuple(tuple(box) for box in caffe_anchors().tolist()),
        anchor_order="ratio-major",
        decode_plus1=True,
        clip_minus1=True,
        min_size_rule="16 original pixels, before ranking",
        nms_plus1=True,
        resize="exact factor",
        scale=(600, 1000),
        mean=CAFFE_MEAN,
        bbox_weights=(1, 1, 1, 1),
        background_index=classes,
        attribute_softmax="all",
    )


def airsplay_meta(*, origin: str, classes: int) -> DetectorMeta:
    """Caffe's procedure with what airsplay's conversion ties to the weights.

    Those are detectron2's anchors and box weights. Whether the conversion folded caffe's shift of
    8 pixels into the weights is not known, its source being unpublished.
    """
    return caffe_meta(origin=origin, classes=classes).model_copy(
        update={
            "anchors": tuple(tuple(box) for box in detectron2_anchors().tolist()),
            "anchor_order": "size-major",
            "decode_plus1": False,
            "bbox_weights": (10.0, 10.0, 5.0, 5.0),
            "attribute_softmax": "foreground",
        }
    )
