"""Public layouts of detector weights, converted to canonical tensors.

Canonical tensors have detectron2's keys, one logit per anchor, boxes of the classes alone, and
background and "no attribute" as last rows. Layouts are recognised by shapes, not by file names.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import (
    DetectorMeta,
    airsplay_meta,
    as_anchors,
    caffe_meta,
    detectron2_meta,
)
from a2cap.extract.detector.resnet import EPSILON

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointLayout:
    """A published layout.

    origin: the meta's.
    anchors: per cell.
    has_caffe_rows: background first and two logits per anchor.
    has_anchors: stored with the weights.
    None: both occur.
    """

    origin: str
    anchors: int
    has_caffe_rows: bool | None
    has_anchors: bool | None
    make_meta: Callable[..., DetectorMeta]


# peteanderson80/bottom-up-attention, and MILVLG/bottom-up-attention.pytorch @4dbce86
CAFFE_ROWS = CheckpointLayout(
    "caffe bottom-up-attention (caffemodel, or MILVLG's conversion)", 12, True, None, caffe_meta
)
AIRSPLAY = CheckpointLayout(  # airsplay/py-bottom-up-attention @85ec9b7
    "airsplay faster_rcnn_from_caffe", 12, False, False, airsplay_meta
)
HUGGING_FACE = CheckpointLayout(
    "Hugging Face unc-nlp/frcnn-vg-finetuned", 12, False, True, airsplay_meta
)
ZOO_LIKE = CheckpointLayout("like detectron2's model zoo", 15, None, None, detectron2_meta)
LAYOUTS = (CAFFE_ROWS, AIRSPLAY, HUGGING_FACE, ZOO_LIKE)

ZOO_R101 = "detectron2 model zoo, faster_rcnn_R_101_C4"
"""Origin of COCO-Detection/faster_rcnn_R_101_C4_3x, which has as many tensors and classes."""
_ZOO_R101_SIZES = 530, 80

_CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
_NOT_WEIGHTS = ("pixel_mean", "pixel_std", "num_batches_tracked", ".norm.eps", _CELL_ANCHORS)
_STEM = "backbone.stem.conv1.weight"
_LOGITS = "proposal_generator.rpn_head.objectness_logits"
_DELTAS = "proposal_generator.rpn_head.anchor_deltas"
PREDICTOR = "roi_heads.box_predictor"
_MILVLG_NAMES = {
    f"{PREDICTOR}.cls_embed.": f"{PREDICTOR}.cls_embedding.",
    f"{PREDICTOR}.attr_linear1.": f"{PREDICTOR}.fc_attr.",
    f"{PREDICTOR}.attr_linear2.": f"{PREDICTOR}.attr_score.",
}
_WITH_BACKGROUND = {f"{PREDICTOR}.{name}" for name in ("cls_score", "cls_embedding", "attr_score")}


def make_canonical(
    tensors: Mapping[str, Tensor], *, name: str
) -> tuple[dict[str, Tensor], DetectorMeta]:
    """Return canonical tensors and the conventions of their layout.

    tensors: by detectron2's keys or MILVLG's names for them; name: the file's, for messages.
    A stored mean, deviation and epsilon are honoured. Raises WeightsError where the layout is
    unknown or the mean is that of RGB. Unknown keys stay, for the detector to reject.
    """
    weights = {_renamed(key): t for key, t in tensors.items() if not key.endswith(_NOT_WEIGHTS)}
    try:
        anchors = len(weights[f"{_DELTAS}.weight"]) // 4
        classes = len(weights[f"{PREDICTOR}.cls_score.weight"]) - 1
        has_caffe_rows = len(weights[f"{_LOGITS}.weight"]) == 2 * anchors
    except KeyError as error:
        raise WeightsError(
            f"weights {name!r} lack {error.args[0]!r}; name a complete file of a known layout"
        ) from error
    stored = tensors.get(_CELL_ANCHORS)
    for layout in LAYOUTS:
        if (
            layout.anchors == anchors
            and layout.has_caffe_rows in (None, has_caffe_rows)
            and layout.has_anchors in (None, stored is not None)
        ):
            break
    else:
        raise WeightsError(
            f"weights {name!r} have an unknown layout: they score {anchors} anchors, published "
            "ones 12 (Visual Genome) or 15 (COCO); write them with "
            "a2cap.extract.weights.load.save_detector"
        )
    is_zoo = layout is ZOO_LIKE and (len(weights), classes) == _ZOO_R101_SIZES
    meta = layout.make_meta(origin=ZOO_R101 if is_zoo else layout.origin, classes=classes)
    meta = _with_stored_mean(meta, tensors.get("pixel_mean"), name=name)
    if "pixel_std" in tensors and _STEM in weights:
        # (x - mean) / deviation * weight: the detector has no division of its own
        weights[_STEM] = weights[_STEM] / tensors["pixel_std"].reshape(1, 3, 1, 1)
    for key in (key for key in tensors if key.endswith(".norm.eps")):
        # only the sum of variance and epsilon matters, and the detector has one epsilon for all
        variance = key.replace(".eps", ".running_var")
        weights[variance] = weights[variance] + (float(tensors[key]) - EPSILON)
    if stored is not None and layout is not ZOO_LIKE:
        # stored anchors take precedence: those of MILVLG's configuration have 4 to 32 pixels
        meta = meta.model_copy(update={"anchors": as_anchors(stored.double().numpy())})
    return (_reordered(weights, anchors) if has_caffe_rows else weights), meta


def _with_stored_mean(meta: DetectorMeta, stored: Tensor | None, *, name: str) -> DetectorMeta:
    """Return the meta with the mean that is stored with the weights, if there is one."""
    if stored is None:
        return meta
    blue, green, red = stored.double().flatten().tolist()
    if blue > red:  # of natural images, blue has the lowest mean
        raise WeightsError(
            f"weights {name!r} are for images in red, green, blue: their pixel_mean is "
            f"{blue:g} {green:g} {red:g}; flip the input channels of the first convolution"
        )
    if np.allclose((blue, green, red), meta.mean, atol=1e-3):
        return meta
    logger.warning(
        "weights %r subtract %g %g %g, stored with them, instead of their layout's %g %g %g",
        *(name, blue, green, red, *meta.mean),
    )
    return meta.model_copy(update={"mean": (blue, green, red)})


def _renamed(key: str) -> str:
    for theirs, ours in _MILVLG_NAMES.items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return key


def _reordered(weights: Mapping[str, Tensor], anchors: int) -> dict[str, Tensor]:
    """Convert caffe's rows to canonical ones."""
    changed = dict(weights)
    for key, rows in weights.items():
        module = key.rpartition(".")[0]
        if module == _LOGITS:
            # the softmax over background and foreground is the sigmoid of their difference
            changed[key] = rows[anchors:] - rows[:anchors]  # (2A, ...) -> (A, ...)
        elif module == f"{PREDICTOR}.bbox_pred":
            changed[key] = rows[4:].contiguous()  # without the boxes of the background
        elif module in _WITH_BACKGROUND:
            changed[key] = rows.roll(-1, dims=0)  # background or "no attribute" last
    return changed
