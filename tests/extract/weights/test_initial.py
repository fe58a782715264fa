import math
import re
from dataclasses import replace

import pytest
import torch

from a2cap.data.errors import WeightsError
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.weights.initial import initialise_from, random_detector
from tests.extract.tiny import TINY

ARCHITECTURE = replace(TINY, classes=3, attributes=4, proposal_width=32)


def made(seed=0, architecture=ARCHITECTURE):
    meta = caffe_meta(origin="test", classes=architecture.classes)
    generator = torch.Generator().manual_seed(seed)
    return random_detector(architecture, meta, generator=generator)


def test_equal_seeds_give_equal_detectors_and_do_not_use_the_global_rng():
    before = torch.get_rng_state()
    first, again = made().state_dict(), made().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(
        made(1).state_dict()["backbone.stem.conv1.weight"], first["backbone.stem.conv1.weight"]
    )


@pytest.mark.parametrize(
    ("key", "spread"),
    [
        ("backbone.res4.1.conv2.weight", math.sqrt(2 / (32 * 9))),
        ("roi_heads.res5.1.conv2.weight", math.sqrt(2 / (64 * 9))),
        ("proposal_generator.rpn_head.conv.weight", 0.01),
        ("roi_heads.box_predictor.cls_score.weight", 0.01),
        ("roi_heads.box_predictor.fc_attr.weight", 0.01),
        ("roi_heads.box_predictor.bbox_pred.weight", 0.001),
    ],
)
def test_weights_have_the_standard_deviation_of_their_source(key, spread):
    assert made().state_dict()[key].std().item() == pytest.approx(spread, rel=0.15)


def test_norms_are_neutral_and_biases_zero():
    for key, tensor in made().state_dict().items():
        if tensor.ndim == 1:
            ones = key.endswith(("norm.weight", "norm.running_var"))
            assert torch.equal(tensor, torch.full_like(tensor, float(ones))), key


def test_heads_of_other_sizes_are_not_initialised():
    source = made(1)
    target = made(0, replace(ARCHITECTURE, classes=5))
    left = initialise_from(target, source.state_dict(), name="a")
    predictor = "roi_heads.box_predictor"
    assert left == (
        f"{predictor}.bbox_pred.bias",
        f"{predictor}.bbox_pred.weight",
        f"{predictor}.cls_embedding.weight",
        f"{predictor}.cls_score.bias",
        f"{predictor}.cls_score.weight",
    )
    state = target.state_dict()
    taken = {key: value for key, value in source.state_dict().items() if key not in left}
    assert all(torch.equal(state[key], value) for key, value in taken.items())


def test_a_backbone_of_another_width_is_refused():
    wider = Architecture(18, width=16, classes=3, attributes=0)
    message = (
        "weights 'a' do not fit a ResNet-18 of width 16: 100 tensors are missing or "
        "of another shape, 'backbone.res2.0.conv1.norm.bias' first; "
        "choose the depth and width of the weights"
    )
    with pytest.raises(WeightsError, match=re.escape(message)):
        initialise_from(made(0, wider), made().state_dict(), name="a")
