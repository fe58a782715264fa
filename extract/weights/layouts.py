"""Public layouts of detector weights, made canonical; recognised by shapes, never by a file's name.

Canonical tensors have detectron2's keys, one logit per anchor, boxes of the classes alone, and
background and "no attribute" as last rows. What reaches this module are tensors of

- caffe's own rows, background first, two logits per anchor: `.caffemodel` of
  peteanderson80/bottom-up-attention and `.pth` of MILVLG/bottom-up-attention.pytorch @4dbce86;
- canonical rows with 12 anchors: airsplay/py-bottom-up-attention @85ec9b7 and, with its anchors
  stored beside, unc-nlp/frcnn-vg-finetuned on Hugging Face;
- canonical rows with 15 anchors: detectron2's COCO-Detection/faster_rcnn_R_101_C4_3x.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import (
    DetectorMeta,
    airsplay_meta,
    as_anchors,
    caffe_meta,
    detectron2_meta,
)

AIRSPLAY = "airsplay faster_rcnn_from_caffe"
HUGGING_FACE = "Hugging Face unc-nlp/frcnn-vg-finetuned"
CAFFE_ROWS = "caffe bottom-up-attention (caffemodel, or MILVLG's conversion)"
MODEL_ZOO = "detectron2 model zoo, faster_rcnn_R_101_C4"
"""What the meta of converted weights names as their origin."""

_CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"
_NOT_WEIGHTS = ("pixel_mean", "pixel_std", "num_batches_tracked", _CELL_ANCHORS)
_LOGITS = "proposal_generator.rpn_head.objectness_logits"
_DELTAS = "proposal_generator.rpn_head.anchor_deltas"
_PREDICTOR = "roi_heads.box_predictor"
_MILVLG_NAMES = {
    f"{_PREDICTOR}.cls_embed.": f"{_PREDICTOR}.cls_embedding.",
    f"{_PREDICTOR}.attr_linear1.": f"{_PREDICTOR}.fc_attr.",
    f"{_PREDICTOR}.attr_linear2.": f"{_PREDICTOR}.attr_score.",
}
_ROWS_OF_CLASSES = ("cls_score.weight", "cls_score.bias", "cls_embedding.weight")
_ROWS_OF_ATTRIBUTES = ("attr_score.weight", "attr_score.bias")
_VISUAL_GENOME_ANCHORS, _COCO_ANCHORS = 12, 15


def make_canonical(
    tensors: Mapping[str, Tensor], *, name: str
) -> tuple[dict[str, Tensor], DetectorMeta]:
    """Canonical tensors and the conventions that belong to them.

    tensors: by detectron2's keys or MILVLG's names for them; name is the file's, for messages.
    Raises WeightsError where they are of no known layout; other keys are left for the detector to
    refuse.
    """
    weights = {_renamed(key): t for key, t in tensors.items() if not key.endswith(_NOT_WEIGHTS)}
    try:
        anchors = len(weights[f"{_DELTAS}.weight"]) // 4
        classes = len(weights[f"{_PREDICTOR}.cls_score.weight"]) - 1
        has_caffe_rows = len(weights[f"{_LOGITS}.weight"]) == 2 * anchors
    except KeyError as error:
        raise WeightsError(
            f"weights {name!r} lack {error.args[0]!r}; name a complete file of a known layout"
        ) from error
    if has_caffe_rows:
        weights = _rows_reordered(weights, anchors=anchors)
    meta = _meta(tensors, anchors=anchors, classes=classes, has_caffe_rows=has_caffe_rows)
    if meta is None:
        raise WeightsError(
            f"weights {name!r} are of no known layout: they score {anchors} anchors, published "
            f"ones {_VISUAL_GENOME_ANCHORS} (Visual Genome) or {_COCO_ANCHORS} (COCO); write them "
            "with a2cap.extract.weights.load.save_detector"
        )
    return weights, meta


def _meta(
    tensors: Mapping[str, Tensor], *, anchors: int, classes: int, has_caffe_rows: bool
) -> DetectorMeta | None:
    """The conventions of a layout; None where no published one has so many anchors."""
    if anchors == _COCO_ANCHORS:
        return detectron2_meta(origin=MODEL_ZOO, classes=classes)
    if anchors != _VISUAL_GENOME_ANCHORS:
        return None
    stored = tensors.get(_CELL_ANCHORS)
    if has_caffe_rows:
        meta = caffe_meta(origin=CAFFE_ROWS, classes=classes)
    else:
        origin = AIRSPLAY if stored is None else HUGGING_FACE
        meta = airsplay_meta(origin=origin, classes=classes)
    if stored is None:
        return meta
    # what is stored wins over what a configuration would give: MILVLG's says 4 to 32 pixels
    return meta.model_copy(update={"anchors": as_anchors(stored.double().numpy())})


def _renamed(key: str) -> str:
    for theirs, ours in _MILVLG_NAMES.items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return key


def _rows_reordered(weights: Mapping[str, Tensor], *, anchors: int) -> dict[str, Tensor]:
    """Caffe's rows made canonical."""
    changed = dict(weights)
    for kind in ("weight", "bias"):
        _replace(changed, f"{_LOGITS}.{kind}", lambda rows: one_logit_per_anchor(rows, anchors))
        _replace(changed, f"{_PREDICTOR}.bbox_pred.{kind}", without_background_boxes)
    for part in (*_ROWS_OF_CLASSES, *_ROWS_OF_ATTRIBUTES):
        _replace(changed, f"{_PREDICTOR}.{part}", first_row_last)
    return changed


def _replace(weights: dict[str, Tensor], key: str, change: Callable[[Tensor], Tensor]) -> None:
    if key in weights:
        weights[key] = change(weights[key])


def one_logit_per_anchor(rows: Tensor, anchors: int) -> Tensor:
    """Background and foreground of A anchors, (2A, ...), to their difference, (A, ...).

    The softmax over the pair is the sigmoid of the difference.
    """
    return rows[anchors:] - rows[:anchors]


def first_row_last(rows: Tensor) -> Tensor:
    """Background (or "no attribute") from the first row to the last: (C + 1, ...)."""
    return torch.cat((rows[1:], rows[:1]))


def without_background_boxes(rows: Tensor) -> Tensor:
    """Box shifts of all classes but the first, the background: (4C + 4, ...) to (4C, ...)."""
    return rows[4:].contiguous()
