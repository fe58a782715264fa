import math

import numpy as np
import pytest
import torch

from a2cap.extract.detector import detections
from a2cap.extract.detector.conventions import caffe_meta, detectron2_meta
from a2cap.extract.detector.detections import detect_objects, propose_regions, refined_boxes
from a2cap.extract.detector.input import ScaledSize, scaled_batch
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import Extractor
from tests.extract.formulas import iou


def close(ours, expected):
    assert ours.class_ids.tolist() == expected.class_ids.tolist()
    assert ours.attribute_logits.argmax(1).tolist() == expected.attribute_logits.argmax(1).tolist()
    np.testing.assert_allclose(ours.boxes, expected.boxes, atol=1e-2)
    np.testing.assert_allclose(ours.scores, expected.scores, atol=1e-4)


def detect(detector, images):
    return detect_objects(detector, images, proposals=30, roi_size=7)


@pytest.mark.slow
def test_batched_detections_equal_single_ones(detector, make_image):
    images = [make_image(0), make_image(1, 64, 64), make_image(2)]
    together = detect(detector, images)
    assert all(len(detected) for detected in together)
    for image, detected in zip(images, together, strict=True):
        close(detected, detect(detector, [image])[0])


def reference(detector, image, *, confidence, overlap, most):
    """One image, one box and one class at a time."""
    (blob,), (size,) = scaled_batch([image], scale=detector.meta.scale, meta=detector.meta)
    with torch.inference_mode():
        maps = detector.backbone(torch.from_numpy(blob)[None])
        (proposals,) = detector.proposal_generator(maps, sizes=[size], count=30, meta=detector.meta)
        rois = torch.nn.functional.pad(proposals, (1, 0))
        described = detector.predict(maps, rois, roi_size=7)
        shifts = detector.roi_heads.box_predictor.bbox_pred(described.features).numpy()
    probabilities = described.class_logits.softmax(dim=1).numpy()
    kept = []
    for kind in range(probabilities.shape[1] - 1):
        candidates = []
        for k, (x1, y1, x2, y2) in enumerate(proposals.tolist()):
            dx, dy, dw, dh = shifts[k, 4 * kind : 4 * kind + 4].tolist()
            width, height = x2 - x1 + 1, y2 - y1 + 1
            x, y = x1 + width / 2 + dx * width, y1 + height / 2 + dy * height
            half = width * math.exp(dw) / 2, height * math.exp(dh) / 2
            corners = (x - half[0], y - half[1], x + half[0], y + half[1])
            limits = (size.width - 1, size.height - 1) * 2
            box = [min(max(c, 0), limit) for c, limit in zip(corners, limits, strict=True)]
            if probabilities[k, kind] >= confidence:
                candidates.append((float(probabilities[k, kind]), kind, box, k))
        survivors: list[tuple[float, int, list[float], int]] = []
        for survivor in sorted(candidates, key=lambda candidate: -candidate[0]):
            if all(iou(survivor[2], other[2], plus1=1) <= overlap for other in survivors):
                survivors.append(survivor)
        kept += survivors
    kept = sorted(kept, key=lambda candidate: -candidate[0])[:most]
    rows, kinds = torch.tensor([(k, kind) for _, kind, _, k in kept]).T
    attributes = detector.roi_heads.box_predictor.attribute_logits_of(
        described.features[rows].clone(), kinds
    )
    return kept, attributes[:, :-1].argmax(dim=1).tolist(), size


def test_detections_equal_loops_over_classes_and_boxes(detector, make_image, monkeypatch):
    image = make_image(0)
    monkeypatch.setattr(detections, "LEAST_SCORE", 0.1)
    monkeypatch.setattr(detections, "MOST_OVERLAP", 0.4)
    monkeypatch.setattr(detections, "MOST_OBJECTS", 15)
    expected, attributes, size = reference(detector, image, confidence=0.1, overlap=0.4, most=15)
    (detected,) = detect(detector, [image])
    assert detected.class_ids.tolist() == [kind for _, kind, *_ in expected]
    assert (
        detected.attribute_logits.argmax(1).tolist() == attributes
    )  # of the class, though a region has several
    np.testing.assert_allclose(detected.scores, [score for score, *_ in expected], atol=1e-4)
    boxes = np.array([box for _, _, box, _ in expected]) / np.tile(size.factors, 2)
    np.testing.assert_allclose(detected.boxes, boxes, atol=1e-2)
    assert detected.boxes.dtype == detected.scores.dtype == np.float32


def test_an_image_without_detections_has_an_empty_result(detector, make_image, monkeypatch):
    monkeypatch.setattr(detections, "LEAST_SCORE", 1.0)
    (detected,) = detect(detector, [make_image(0)])
    assert len(detected) == 0
    assert detected.boxes.shape == (0, 4)
    assert detected.attribute_logits.shape[0] == 0


def test_no_images_give_no_detections(detector):
    assert detect(detector, []) == []


def test_proposals_equal_those_of_extraction(detector, make_image):
    images = [make_image(0), make_image(3)]
    low, high = detector.meta.scale
    config = ExtractConfig(
        min_side=low, max_side=high, proposals=12, min_regions=12, max_regions=12, roi_size=7
    )
    extractor = Extractor(detector, config=config)
    for image, boxes in zip(images, propose_regions(detector, images, count=12), strict=True):
        regions = extractor(image)
        order = np.lexsort(boxes.T), np.lexsort(regions.boxes.T)
        np.testing.assert_allclose(boxes[order[0]], regions.boxes[order[1]], atol=1e-2)


@pytest.mark.parametrize("make", [caffe_meta, detectron2_meta])
def test_zero_deltas_keep_a_proposal_and_weights_divide_deltas(make):
    meta = make(origin="test", classes=1).model_copy(update={"decode_plus1": False})
    size = ScaledSize(height=200, width=200, scale=1, factors=(1, 1))
    proposal = torch.tensor([[20.0, 20, 60, 40]])
    assert torch.equal(refined_boxes(torch.zeros(1, 4), proposal, size=size, meta=meta), proposal)
    once_right = torch.tensor([[meta.bbox_weights[0], 0, 0, 0]])
    moved = refined_boxes(once_right, proposal, size=size, meta=meta)
    torch.testing.assert_close(moved, torch.tensor([[60.0, 20, 100, 40]]))
