"""The detector in detectron2's modules, and the error where detectron2 is missing."""

import importlib
import sys

import numpy as np
import pytest
import torch

from a2cap.data.errors import A2Error
from a2cap.extract.detector.conventions import detectron2_meta
from a2cap.extract.detector.detector import fuse
from a2cap.extract.detector.input import ScaledSize, image_blob
from a2cap.extract.detector.proposals import select_proposals
from a2cap.extract.detectron2_backend import rebuild
from a2cap.extract.extractor import Extractor
from tests.extract.tiny import CONFIG, refusal, relative, with_meta

THEIRS = CONFIG.model_copy(update={"backend": "detectron2"})


def needs_detectron2(test):
    ignoring = pytest.mark.filterwarnings("ignore")(pytest.mark.usefixtures("detectron2")(test))
    return pytest.mark.detectron2(ignoring)


@pytest.fixture
def detectron2():
    return pytest.importorskip("detectron2", reason="detectron2 is not installed")


def test_missing_detectron2_is_reported_in_one_line(deep, monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2", None)
    for name in [name for name in sys.modules if name.startswith("detectron2.")]:
        monkeypatch.delitem(sys.modules, name)
    message = (
        r"^detectron2 cannot be imported: .*detectron2.*; build it from its source \(no package "
        r"index has it\), or set extract\.backend=native, which gives the same features$"
    )
    with pytest.raises(A2Error, match=message):
        Extractor(deep, config=THEIRS)


def test_a_depth_that_detectron2_does_not_dilate_is_refused(detector):
    message = refusal(Extractor, detector, config=THEIRS)
    assert message == "detectron2 does not dilate ResNet-18; set extract.backend=native"


@needs_detectron2
@pytest.mark.parametrize("form", ["caffe", "detectron2"])
def test_both_backends_give_the_same_regions(deep, form, make_image):
    detector = deep
    if form == "detectron2":
        kept = {"anchors": deep.meta.anchors, "scale": (192, 320)}
        meta = detectron2_meta(origin="test", classes=12).model_copy(update=kept)
        detector = with_meta(deep, meta)
    ours, theirs = Extractor(detector, config=CONFIG), Extractor(detector, config=THEIRS)
    for seed in range(4):
        native, other = ours(make_image(seed)), theirs(make_image(seed))
        assert np.abs(native.boxes - other.boxes).max() < 1e-2
        assert np.array_equal(native.class_ids, other.class_ids)
        np.testing.assert_allclose(other.features, native.features, rtol=1e-3, atol=1e-4)


@needs_detectron2
def test_both_backends_save_the_same_weights(deep):
    extractor = Extractor(deep, config=THEIRS)
    assert extractor.detector is deep


@needs_detectron2
def test_proposals_equal_those_of_detectron2():
    find = importlib.import_module(
        "detectron2.modeling.proposal_generator.proposal_utils"
    ).find_top_rpn_proposals
    transform = importlib.import_module("detectron2.modeling.box_regression").Box2BoxTransform
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, generator=generator)
    deltas = torch.randn(500, 4, generator=generator)
    anchors = torch.rand(500, 4, generator=generator) * 90
    anchors[:, 2:] += anchors[:, :2]
    meta = detectron2_meta(origin="test", classes=12)
    size = ScaledSize(height=120, width=160, scale=1, factors=(1, 1))
    ours = select_proposals(logits, deltas, anchors=anchors, size=size, count=50, meta=meta)
    boxes = transform(weights=(1.0, 1.0, 1.0, 1.0)).apply_deltas(deltas, anchors)
    theirs = find([boxes[None]], [logits[None]], [(120, 160)], 0.7, 6000, 50, 0.0, False)
    torch.testing.assert_close(ours, theirs[0].proposal_boxes.tensor, rtol=1e-5, atol=1e-4)


@needs_detectron2
def test_each_stage_equals_the_stage_of_detectron2_on_equal_inputs(deep, make_image):
    ours, theirs = fuse(deep), rebuild(deep)
    blob = image_blob(make_image(5, 192, 256), scale=1.0, mean=deep.meta.mean)
    rois = torch.tensor([[0.0, 3, 3, 200, 150], [0, 40, 10, 120, 60], [0, 100, 20, 250, 190]])
    with torch.inference_mode():
        maps = theirs.backbone(torch.from_numpy(blob)[None])
        assert relative(ours.backbone(torch.from_numpy(blob)[None]), maps) < 1e-5
        heads = [network.proposal_generator.rpn_head(maps) for network in (ours, theirs)]
        torch.testing.assert_close(heads[0], heads[1], rtol=1e-5, atol=1e-5)
        pooled = [
            next(iter(network.pool(maps, rois, size=7, scale=1 / 16, chunk=3)))
            for network in (ours, theirs)
        ]
        assert torch.equal(pooled[0], pooled[1])
        features = theirs.roi_heads(pooled[1])
        assert relative(ours.roi_heads(pooled[1]), features) < 1e-5
        logits = [network.roi_heads.box_predictor(features) for network in (ours, theirs)]
        assert torch.equal(logits[0].argmax(dim=1), logits[1].argmax(dim=1))
