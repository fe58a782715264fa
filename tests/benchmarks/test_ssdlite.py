"""Boxes of photographs by SSDLite, without its weights, which are no part of a2."""

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from a2cap.data.annotations.instances import read_instances
from a2cap.data.boxes import box_iou
from benchmarks import ssdlite
from benchmarks.ssdlite import SSDLite, select


def detections(count, seed=0):
    chance = torch.Generator().manual_seed(seed)
    first, second = torch.rand(2, count, 2, generator=chance)
    boxes = torch.cat((torch.minimum(first, second) - 0.1, torch.maximum(first, second)), dim=1)
    return boxes, torch.rand(count, 90, generator=chance) ** 40


@pytest.mark.parametrize(("least", "most"), [(10, 35), (3, 8), (60, 60)])
def test_boxes_are_the_best_ones_that_overlap_little(least, most):
    boxes, scores = detections(200)
    kept, best, categories = select(boxes, scores, score=0.9, least=least, most=most)
    assert len(kept) == most or least <= len(kept) < most
    assert len(kept) <= least or best[-1] >= 0.9
    assert best.tolist() == sorted(best.tolist(), reverse=True)
    assert best[0] == scores.max() and categories[0] == scores.max(dim=0).values.argmax() + 1
    assert kept.min() >= 0 and kept.max() <= 1
    overlaps = box_iou(kept.numpy(), kept.numpy())
    assert overlaps[~np.eye(len(kept), dtype=bool)].max() <= 0.6 + 1e-6


def test_boxes_are_decoded_from_their_anchors():
    anchors = torch.tensor([[[0.2, 0.1, 0.6, 0.3]]])  # y1 x1 y2 x2
    detector = SSDLite({"Postprocessor/ExpandDims": anchors})
    encoded = torch.tensor([[[0.0, 0, 0, 0]], [[5.0, 10, 0, 5 * math.log(2)]]])
    expected = torch.tensor([[[0.1, 0.2, 0.3, 0.6]], [[0.2, 0.4, 0.6, 0.8]]])
    torch.testing.assert_close(detector._decoded(encoded), expected)


@pytest.mark.parametrize(("side", "stride", "before"), [(300, 2, 0), (75, 2, 1), (19, 1, 1)])
def test_padding_is_tensorflows(side, stride, before):
    chance = torch.Generator().manual_seed(0)
    states, kernel = torch.randn(1, 2, side, side, generator=chance), torch.randn(3, 2, 3, 3)
    states_after = ssdlite._same(states, kernel, stride=stride)
    assert states_after.shape[2:] == (-(-side // stride),) * 2
    corner = torch.zeros(2, 3, 3)
    corner[:, before:, before:] = states[0, :, : 3 - before, : 3 - before]
    torch.testing.assert_close(states_after[0, :, 0, 0], (kernel * corner).sum(dim=(1, 2, 3)))


def test_the_file_is_one_of_coco_instances(tmp_path, monkeypatch):
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for name in ("a.jpg", "deep/b.png"):
        Image.new("RGB", (80, 40)).save(tmp_path / "images" / name)
    (tmp_path / "images" / "c.jpg").write_text("no image")
    boxes = torch.tensor([[0.5, 0.25, 1.2, 0.75], [0, 0, 0.25, 0.25]])
    scores = torch.zeros(2, 90)
    scores[0, 17], scores[1, 0] = 0.75, 0.25
    monkeypatch.setattr(ssdlite, "load", lambda folder: lambda images: (boxes[None], scores[None]))
    options = ["--weights", tmp_path, "--images", tmp_path / "images"]
    command = [*map(str, options), "--output", str(tmp_path / "boxes.json")]
    answer = CliRunner().invoke(ssdlite.main, command)
    assert answer.exit_code == 0, answer.output
    assert "skipped c.jpg: " in answer.output
    instances = read_instances(tmp_path / "boxes.json")
    assert list(instances) == ["a", "deep/b"]
    objects = instances["deep/b"]
    assert objects.boxes.tolist() == [[0, 0, 80, 40], [40, 10, 80, 30], [0, 0, 20, 10]]
    assert objects.names == ("", "dog", "")
    assert objects.scores.tolist() == [1, 0.75, 0.25]
    assert objects.size == (80, 40)


def test_other_weights_are_refused(tmp_path):
    entry = {"name": "Postprocessor/ExpandDims", "shape": [1, 4, 4], "dtype": "float32"}
    content = {"weightsManifest": [{"paths": ["shard"], "weights": [entry]}]}
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "model.json").write_text(json.dumps(content))
    (tmp_path / "shard").write_bytes(bytes(64))
    assert ssdlite.load(tmp_path)._anchors.shape == (4, 4)
    (tmp_path / "shard").write_bytes(bytes(63))
    command = ["--weights", tmp_path, "--images", tmp_path, "--output", tmp_path / "boxes.json"]
    answer = CliRunner().invoke(ssdlite.main, list(map(str, command)))
    assert answer.exit_code == 1
    assert answer.output.startswith(f"Error: no SSDLite in {str(tmp_path)!r} (")
    assert answer.output.endswith("); name models/coco-ssd of the package\n")
