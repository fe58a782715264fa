import math
from dataclasses import replace

import pytest
import torch
from torchvision.models import resnet18, resnet50

from a2cap.extract.detector.conventions import DETECTRON2_MEAN, caffe_meta
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.weights.initial import (
    DEVIATION,
    initialise_from,
    random_detector,
    resnet_tensors,
)
from tests.extract.tiny import TINY, refusal, tiny_meta

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
    assert refusal(initialise_from, made(0, wider), made().state_dict(), name="a") == message


META = tiny_meta(classes=2, sizes=(32,), side=64)


def initialised(depth, state):
    architecture = Architecture(depth, classes=2, attributes=0, anchors=1, proposal_width=4)
    detector = random_detector(architecture, META, generator=torch.Generator().manual_seed(0))
    return detector, initialise_from(detector, resnet_tensors(state), name="imagenet.pth")


def shaken(network):
    """Statistics and weights of norms are not neutral."""
    generator = torch.Generator().manual_seed(0)
    for key, tensor in network.state_dict().items():
        if ("bn" in key or "downsample.1" in key) and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)
    return network.eval()


@pytest.mark.slow
def test_a_resnet_18_computes_what_torchvisions_does():
    network = shaken(resnet18(weights=None))
    detector, _ = initialised(18, network.state_dict())
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1)) * 255  # BGR
    mean, deviation = (torch.tensor(row).view(1, 3, 1, 1) for row in (DETECTRON2_MEAN, DEVIATION))
    rgb = ((image - mean) / deviation).flip(1)
    with torch.inference_mode():
        x = network.maxpool(network.relu(network.bn1(network.conv1(rgb))))
        maps = network.layer3(network.layer2(network.layer1(x)))
        expected = network.layer4(maps).mean(dim=(2, 3))
        features = detector.backbone(image - mean)
        torch.testing.assert_close(features, maps, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(detector.roi_heads(features), expected, rtol=1e-3, atol=1e-3)


def test_the_deviation_is_torchvisions():
    assert pytest.approx([255 * share for share in (0.225, 0.224, 0.229)]) == DEVIATION
    assert pytest.approx([255 * share for share in (0.406, 0.456, 0.485)]) == DETECTRON2_MEAN


@pytest.mark.parametrize(
    ("depth", "network"), [(18, resnet18), pytest.param(50, resnet50, marks=pytest.mark.slow)]
)
def test_only_the_heads_are_not_initialised(depth, network):
    with torch.device("meta"):
        state = network(weights=None).state_dict()
    state = {key: torch.zeros(tensor.shape) for key, tensor in state.items()}
    _, left = initialised(depth, state)
    assert {key.rsplit(".", 1)[0] for key in left} == {
        "proposal_generator.rpn_head.conv",
        "proposal_generator.rpn_head.objectness_logits",
        "proposal_generator.rpn_head.anchor_deltas",
        "roi_heads.box_predictor.cls_score",
        "roi_heads.box_predictor.bbox_pred",
    }
