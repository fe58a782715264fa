import math

import pytest
import torch

from a2cap.extract.detector.anchors import MAX_LOG_GROWTH, decode_boxes
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.input import ScaledSize
from a2cap.extract.detector.proposals import select_proposals

META = caffe_meta(origin="test", classes=1)


def select(anchors, *, scale=1.0, meta=META, step=1):
    anchors = torch.tensor(anchors, dtype=torch.float32)
    logits = -step * torch.arange(len(anchors), dtype=torch.float32)
    size = ScaledSize(height=100, width=200, scale=scale, factors=(scale, scale))
    return select_proposals(
        logits, torch.zeros(len(anchors), 4), anchors=anchors, size=size, count=300, meta=meta
    ).tolist()


def test_sizes_are_not_limited_before_clipping():
    deltas = torch.tensor([[0.0, 0.0, 20.0, 100.0]])
    box = decode_boxes(deltas, torch.tensor([[0.0, 0.0, 15.0, 15.0]]), plus1=True)
    assert box[0, 2] > 1e8
    assert box[0, 3] == torch.inf


def test_detectron2_limits_growth_to_62_and_a_half_times():
    deltas = torch.tensor([[0.0, 0.0, 20.0, 4.0]])
    anchor = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    box = decode_boxes(deltas, anchor, plus1=False, limit=MAX_LOG_GROWTH)[0]
    assert (box[2] - box[0]).item() == pytest.approx(1000)
    assert (box[3] - box[1]).item() == pytest.approx(16 * math.exp(4))


def test_detectron2_drops_only_empty_boxes_and_after_ranking(monkeypatch):
    monkeypatch.setattr("a2cap.extract.detector.proposals.CANDIDATES", 2)
    meta = META.with_procedure("detectron2").model_copy(update={"decode_plus1": False})
    outside = [210, 0, 230, 20]  # clipped to no width, and still one of the two candidates
    boxes = select([[0, 0, 3, 3], outside, [50, 50, 90, 90]], meta=meta)
    assert boxes == [[0, 0, 3, 3]]


@pytest.mark.parametrize(("plus1", "kept"), [(True, 1), (False, 2)])
def test_overlap_is_measured_on_boxes_that_include_their_last_pixel(plus1, kept):
    # 20 and 29 wide: 20/29 = 0.690 with edges as decoded, 21/30 = 0.7 + with the last pixel.
    meta = META.model_copy(update={"nms_plus1": plus1})
    anchors = [[0, 0, 28, 39], [0, 0, 19.1, 39]]
    assert len(select(anchors, meta=meta)) == kept
