import pytest
import torch
from torchvision.models import resnet18, resnet50

from a2cap.extract.detector.conventions import DETECTRON2_MEAN
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.weights.imagenet import DEVIATION, resnet_tensors
from a2cap.extract.weights.initial import initialise_from, random_detector
from tests.extract.tiny import tiny_meta

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
        found = detector.backbone(image - mean)
        torch.testing.assert_close(found, maps, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(detector.roi_heads(found), expected, rtol=1e-3, atol=1e-3)


def test_the_deviation_is_torchvisions():
    assert pytest.approx([255 * one for one in (0.225, 0.224, 0.229)]) == DEVIATION
    assert pytest.approx([255 * one for one in (0.406, 0.456, 0.485)]) == DETECTRON2_MEAN


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
