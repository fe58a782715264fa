import numpy as np
import pytest

from a2cap.data.boxes import box_iou


def test_iou_is_intersection_over_union():
    boxes = np.array([[0, 0, 40, 30], [30, 20, 50, 40], [100, 100, 110, 110]], np.float32)
    iou = box_iou(boxes, boxes[:2])
    assert iou.shape == (3, 2)
    assert iou[:, 0] == pytest.approx([1.0, 100 / 1500, 0.0])
    assert iou[:, 1] == pytest.approx([100 / 1500, 1.0, 0.0])


def test_boxes_without_area_have_iou_zero():
    empty = np.zeros((1, 4), dtype=np.float32)
    assert box_iou(empty, empty).tolist() == [[0.0]]
