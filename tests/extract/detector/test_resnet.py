import json

import pytest
import torch
import torch.nn.functional as F

from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import (
    Architecture,
    Backbone,
    NormalizedConvolution,
    Stem,
    residual_stage,
)
from tests.extract.tiny import relative


def convolutions(stage):
    return [layer for layer in stage.modules() if isinstance(layer, NormalizedConvolution)]


def detector_shapes(architecture):
    with torch.device("meta"):
        detector = Detector(architecture, caffe_meta(origin="test", classes=architecture.classes))
    return {key: list(tensor.shape) for key, tensor in detector.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "layers", "width"),
    # Stem, blocks times convolutions, shortcuts where the width changes.
    [
        (18, 1 + 8 * 2 + 3, 512),
        (50, 1 + 16 * 3 + 4, 2048),
        (101, 1 + 33 * 3 + 4, 2048),
        (152, 1 + 50 * 3 + 4, 2048),
    ],
)
def test_every_depth_builds_with_the_right_tensors_and_width(depth, layers, width):
    assert Architecture(depth).feature_width == width
    others = 6 + 4 + 5  # proposal head, class and box layers, attribute head
    assert len(detector_shapes(Architecture(depth))) == 5 * layers + others


@pytest.mark.shared
@pytest.mark.parametrize(("attributes", "schema"), [(400, "attr"), (0, "noattr")])
def test_keys_and_shapes_of_depth_101_are_those_of_the_public_checkpoint(
    shared, attributes, schema
):
    path = shared / "reference" / "checkpoint_schemas" / f"airsplay_{schema}.json"
    expected = json.loads(path.read_text())
    assert detector_shapes(Architecture(101, attributes=attributes)) == expected


@pytest.mark.parametrize(("side", "cells"), [(600, 38), (601, 38), (160, 10), (3, 1)])
def test_map_sizes_follow_the_unpadded_pool_that_rounds_up(side, cells):
    backbone = Backbone(Architecture(18, width=2))
    for parameter in backbone.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.inference_mode():
        assert backbone(torch.zeros(1, 3, side, side)).shape == (1, 8, cells, cells)


@pytest.mark.parametrize("padded_pool", [False, True])
@pytest.mark.parametrize("depth", [18, 50])
def test_the_map_of_a_padded_image_is_that_of_the_image_alone(depth, padded_pool):
    torch.manual_seed(0)
    backbone = Backbone(Architecture(depth, width=4), padded_pool=padded_pool)
    for module in backbone.modules():
        if isinstance(module, NormalizedConvolution):
            torch.nn.init.normal_(module.norm.bias)  # what is beyond an image would not stay zero
            module.fold()
    sides = [(95, 160), (128, 131), (98, 97), (128, 160)]
    images = torch.randn(len(sides), 3, 128, 160)
    for image, (height, width) in zip(images, sides, strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    with torch.inference_mode():
        together = backbone.of_padded(images, torch.tensor(sides))
        for maps, image, (height, width) in zip(together, images, sides, strict=True):
            alone = backbone(image[None, :, :height, :width])[0]
            rows, columns = backbone.levels(height)[-1], backbone.levels(width)[-1]
            assert alone.shape[1:] == (rows, columns)
            assert relative(maps[:, :rows, :columns], alone) < 1e-5


def test_the_pool_of_the_stem_has_no_padding():
    stem = Stem(1)
    torch.nn.init.zeros_(stem.conv1.weight)
    with torch.inference_mode():
        stem.conv1.weight[0, 0, 3, 3] = 1  # the centre: passes channel 0, every second pixel
        image = torch.zeros(1, 3, 16, 16)
        image[0, 0] = torch.arange(16).repeat(16, 1)
        columns = stem(image)[0, 0, 0]
    # Convolved columns are 0 2 4 ... 14; windows of three start at 0, 2, 4 and 6.
    torch.testing.assert_close(columns, torch.tensor([4.0, 8.0, 12.0, 14.0]) / (1 + 1e-5) ** 0.5)


def test_a_bottleneck_strides_in_its_first_convolution():
    stage = residual_stage(Architecture(50, width=8), 3)
    strides = [layer.stride for layer in convolutions(stage)]
    # The first block's shortcut, then conv1, conv2 and conv3 of each block.
    assert strides == [(n, n) for n in [2] + [2, 1, 1] + 3 * [1, 1, 1]]


@pytest.mark.parametrize("depth", [18, 101])
def test_the_last_stage_keeps_its_resolution_and_dilates_by_two(depth):
    stage = residual_stage(Architecture(depth, width=8), 5)
    assert {layer.stride for layer in convolutions(stage)} == {(1, 1)}
    wide = [layer for layer in convolutions(stage) if layer.weight.shape[2:] == (3, 3)]
    assert {(layer.dilation, layer.padding) for layer in wide} == {((2, 2), (2, 2))}


def test_a_block_adds_its_shortcut_before_the_last_relu():
    block = residual_stage(Architecture(18, width=4), 2)[0]
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(block(x), F.relu(x))
