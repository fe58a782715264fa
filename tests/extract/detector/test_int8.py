"""int8 decides, float32 is stored; the speed of a whole ResNet-101 comes from the benchmark."""

import numpy as np
import pytest
import torch

from a2cap.extract.detector import mixed_precision as mixed
from a2cap.extract.detector.detector import CHUNK
from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.int8 import Int8Heads, contenders
from a2cap.extract.extractor import Extractor
from tests.extract.detector.test_roi_pool import some_regions
from tests.extract.tiny import CONFIG, relative, seeded

INT8 = CONFIG.model_copy(update={"precision": "int8"})
CPU = torch.device("cpu")


def test_int8_selects_the_regions_and_features_of_exact(deep, make_image):
    exact, other = (Extractor(deep, config=config) for config in (CONFIG, INT8))
    for seed in range(3):
        expected, found = exact(make_image(seed)), other(make_image(seed))
        assert np.array_equal(found.boxes, expected.boxes)
        assert np.array_equal(found.features, expected.features)


@pytest.mark.parametrize(("images", "count"), [(1, 2), (2, 3 * CHUNK)])
def test_int8_logits_are_close_to_float32_logits(deep, images, count):
    maps = torch.rand(images, 128, 11, 17, generator=seeded())
    rois = some_regions(3 * CHUNK, images=images, seed=0)[-count:]
    assert deep.shares_cells(maps, rois) == (count > CHUNK)
    with torch.inference_mode():
        logits = Int8Heads(fuse(deep)).class_logits(maps, rois, roi_size=7)
        expected = deep.predict(maps, rois, roi_size=7).class_logits
    assert relative(logits, expected) < 0.1


def test_proposals_are_computed_while_errors_like_the_known_ones_could_select_them():
    logits = torch.zeros(40, 4)
    logits[:, 0] = torch.linspace(3, -3, 40)
    drift = torch.tensor([0.3, -0.3, 0, 0]) + 0.01 * torch.randn(40, 4, generator=seeded())
    exact, rough = (part.softmax(dim=1)[:, :-1].numpy() for part in (logits, logits + drift))
    known = np.arange(40) < 5

    def select(probabilities):
        return np.argsort(-probabilities[:, 0])[:7]

    missing, corrected = contenders(rough, exact, known, select)
    assert (len(missing), set(missing[:2])) == (CHUNK, {5, 6})
    assert np.abs(rough - exact).max() > 0.05
    np.testing.assert_allclose(corrected, exact, atol=0.01)
    known[5:7] = True
    missing, _ = contenders(rough, exact, known, select)
    assert len(missing) == 0


def test_the_gain_is_0_without_bottlenecks_or_operators(detector, deep, monkeypatch):
    assert mixed.int8_gain(detector, CPU, roi_size=7) == 0
    network = fuse(deep)
    assert mixed.int8_gain(network, CPU, roi_size=7) > 0

    def fail(_):
        raise RuntimeError("no oneDNN")

    monkeypatch.setattr(mixed, "Int8Block", fail)
    assert mixed.int8_gain(network, CPU, roi_size=7) == 0
