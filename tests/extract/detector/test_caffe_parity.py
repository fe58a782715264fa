"""Against caffe's procedure written out in plain numpy, one box and one class at a time.

What is written out: lib/rpn/generate_anchors.py, lib/rpn/proposal_layer.py, lib/nms/cpu_nms.pyx and
tools/generate_tsv.py of peteanderson80/bottom-up-attention @514e561.
"""

import base64
import csv
import sys
from typing import Any

import numpy as np
import pytest
import torch

from a2cap.extract.detector.anchors import anchor_grid, caffe_anchors
from a2cap.extract.detector.conventions import CAFFE_MEAN, caffe_meta
from a2cap.extract.detector.input import ScaledSize, image_blob, image_scale
from a2cap.extract.detector.proposals import select_proposals
from a2cap.extract.detector.region_selection import RegionSelection
from a2cap.extract.extractor import Extractor
from tests.extract.detector.test_region_selection import regions_of
from tests.extract.tiny import CONFIG

META = caffe_meta(origin="test", classes=1600)

# extraction.md 1.3 and lib/rpn/generate_anchors.py, run with scales 4, 8, 16, 32.
PUBLISHED_ANCHORS = [
    [-38, -16, 53, 31],
    [-84, -40, 99, 55],
    [-176, -88, 191, 103],
    [-360, -184, 375, 199],
    [-24, -24, 39, 39],
    [-56, -56, 71, 71],
    [-120, -120, 135, 135],
    [-248, -248, 263, 263],
    [-14, -36, 29, 51],
    [-36, -80, 51, 95],
    [-80, -168, 95, 183],
    [-168, -344, 183, 359],
]


def reference_nms(boxes, scores, threshold):
    """Greedy, "at least", sides one longer; equal scores keep their order."""
    areas = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    order = np.argsort(-scores, kind="stable")
    suppressed = np.zeros(len(boxes), bool)
    kept = []
    for i in order:
        if suppressed[i]:
            continue
        kept.append(i)
        width = np.minimum(boxes[i, 2], boxes[:, 2]) - np.maximum(boxes[i, 0], boxes[:, 0]) + 1
        height = np.minimum(boxes[i, 3], boxes[:, 3]) - np.maximum(boxes[i, 1], boxes[:, 1]) + 1
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        suppressed |= shared / (areas[i] + areas - shared) >= threshold
    return kept


def reference_proposals(logits, deltas, *, size, count):
    """Logits (A, h, w), deltas (4A, h, w) as the network gives them."""
    anchors = np.array(PUBLISHED_ANCHORS, np.float32)
    kept, confidences = [], []
    for y in range(logits.shape[1]):
        for x in range(logits.shape[2]):
            for a, anchor in enumerate(anchors):
                x1, y1, x2, y2 = anchor + np.array([x, y, x, y], np.float32) * 16
                width, height = x2 - x1 + 1, y2 - y1 + 1
                dx, dy, dw, dh = deltas[4 * a : 4 * a + 4, y, x]
                centre_x, centre_y = dx * width + x1 + width / 2, dy * height + y1 + height / 2
                width, height = np.exp(dw) * width, np.exp(dh) * height
                corners = [centre_x - width / 2, centre_y - height / 2]
                corners += [centre_x + width / 2, centre_y + height / 2]
                limits = [size.width - 1, size.height - 1] * 2
                x1, y1, x2, y2 = (
                    max(min(corner, limit), 0)
                    for corner, limit in zip(corners, limits, strict=True)
                )
                if x2 - x1 + 1 >= 16 * size.scale and y2 - y1 + 1 >= 16 * size.scale:
                    kept.append([x1, y1, x2, y2])
                    confidences.append(logits[a, y, x])
    boxes, scores = np.array(kept, np.float32), np.array(confidences)
    best = np.argsort(-scores, kind="stable")[:6000]
    return boxes[best][reference_nms(boxes[best], scores[best], 0.7)[:count]]


def reference_selection(boxes, probabilities, *, confidence, min_regions, max_regions):
    """One suppression per class, as tools/generate_tsv.py does."""
    best = np.zeros(len(boxes), np.float32)
    for scores in probabilities.T:
        kept = reference_nms(boxes, scores, 0.3)
        best[kept] = np.maximum(best[kept], scores[kept])
    chosen = np.flatnonzero(best >= confidence)
    ranked = np.argsort(-best, kind="stable")
    if len(chosen) < min_regions:
        return ranked[:min_regions]
    return ranked[:max_regions] if len(chosen) > max_regions else chosen


def test_anchors_are_the_published_twelve():
    assert caffe_anchors().tolist() == PUBLISHED_ANCHORS


@pytest.mark.parametrize(
    ("height", "width", "scale", "spread"),
    [(8, 10, 1.0, 0.2), (10, 7, 2.4, 0.5), (6, 12, 0.7, 3.0)],
)
def test_proposals_equal_those_of_caffe(height, width, scale, spread):
    generator = torch.Generator().manual_seed(height)
    logits = torch.randn(12, height, width, generator=generator)
    deltas = torch.randn(48, height, width, generator=generator) * spread
    size = ScaledSize(
        height=16 * height - 5, width=16 * width - 3, scale=scale, factors=(scale, scale)
    )
    proposals = select_proposals(
        logits.permute(1, 2, 0).reshape(-1),
        deltas.permute(1, 2, 0).reshape(-1, 4),
        anchors=anchor_grid(torch.tensor(META.anchors), height=height, width=width),
        size=size,
        count=50,
        meta=META,
    )
    expected = reference_proposals(logits.numpy(), deltas.numpy(), size=size, count=50)
    np.testing.assert_allclose(proposals, expected, rtol=1e-5, atol=1e-3)


def some_regions(kind, seed):
    random = np.random.default_rng(seed)
    centres = random.uniform(0, 400, (80, 2))
    if kind == "clustered":
        centres = centres[random.integers(0, 8, 80)] + random.normal(0, 12, (80, 2))
    half = random.uniform(10, 80, (80, 2)) / 2
    boxes = np.concatenate([centres - half, centres + half], axis=1).astype(np.float32)
    logits = random.normal(0, 3, (80, 41))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return boxes, probabilities[:, :-1].astype(np.float32)


def limits(min_regions: int, max_regions: int) -> dict[str, Any]:
    return {"confidence": 0.2, "min_regions": min_regions, "max_regions": max_regions}


def assert_selected_as_by_caffe(boxes, probabilities, rule):
    regions = regions_of(boxes[None], probabilities[None])
    [selected], _ = RegionSelection(proposals=len(boxes), roi_size=7, **rule)(regions)
    assert selected.tolist() == reference_selection(boxes, probabilities, **rule).tolist()


@pytest.mark.parametrize("counts", [(36, 36), (10, 100), (10, 20), (90, 100)])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_pruned_selection_equals_one_suppression_per_class(kind, counts):
    assert_selected_as_by_caffe(*some_regions(kind, 0), limits(*counts))


def test_selection_equals_caffe_when_nothing_is_confident():
    boxes, _ = some_regions("clustered", 0)
    probabilities = np.random.default_rng(0).uniform(0, 1e-3, (80, 40)).astype(np.float32)
    assert_selected_as_by_caffe(boxes, probabilities, limits(36, 36))


@pytest.mark.slow
def test_regions_of_an_image_equal_those_of_caffe(detector, make_image):
    """Convolutions aside, which nothing here writes out: proposals, selection, boxes written."""
    image, scale = make_image(0), 2.0
    blob = torch.from_numpy(image_blob(image, scale=scale, mean=CAFFE_MEAN))[None]
    size = ScaledSize(height=192, width=256, scale=scale, factors=(scale, scale))
    with torch.inference_mode():
        maps = detector.backbone(blob)
        head = detector.proposal_generator.rpn_head
        hidden = torch.relu(head.conv(maps))
        logits, deltas = (
            layer(hidden)[0].numpy() for layer in (head.objectness_logits, head.anchor_deltas)
        )
        proposals = reference_proposals(logits, deltas, size=size, count=60)
        rois = np.concatenate([np.zeros((len(proposals), 1), np.float32), proposals], axis=1)
        described = detector.predict(maps, torch.from_numpy(rois), roi_size=7)
    probabilities = described.class_logits.softmax(dim=1).numpy()[:, :-1]
    boxes = proposals / np.float32(scale)
    chosen = reference_selection(boxes, probabilities, **limits(5, 20))
    regions = Extractor(detector, config=CONFIG)(image)
    np.testing.assert_allclose(regions.boxes, boxes[chosen], atol=1e-3)
    np.testing.assert_allclose(regions.features, described.features[chosen], rtol=1e-3, atol=1e-4)
    assert regions.class_ids.tolist() == probabilities[chosen].argmax(axis=1).tolist()


@pytest.mark.shared
def test_published_boxes_end_where_proposals_are_clipped(shared):
    """x2 and y2 of caffe's own features never pass (W' - 1) / s, and reach it."""
    csv.field_size_limit(sys.maxsize)
    path = shared / "reference" / "caffe_features" / "train2014_obj36.tsv"
    with path.open() as lines:
        for fields in csv.reader(lines, delimiter="\t"):
            height, width = int(fields[1]), int(fields[2])
            boxes = np.frombuffer(base64.b64decode(fields[8]), np.float32).reshape(-1, 4)
            scale = image_scale(height=height, width=width, min_side=600, max_side=1000)
            last = [(round(side * scale) - 1) / scale for side in (width, height)]
            np.testing.assert_allclose(boxes[:, 2:].max(axis=0), last, atol=1e-3)
            assert ((boxes[:, 2:] - boxes[:, :2]) * scale + 1 >= 16 * scale - 1e-3).all()
