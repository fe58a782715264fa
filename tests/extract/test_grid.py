import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.regions import is_grid
from a2cap.extract.detector import proposal_precision
from a2cap.extract.detector.input import rounded_size
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.extract.grid import GridExtractor, grid_width, load_grid_weights
from a2cap.extract.weights.load import save_detector
from tests.extract.tiny import refusal

CONFIG = ExtractConfig(
    boxes="grid", grid_backbone="resnet18", grid_size=7, min_side=64, max_side=128
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


@pytest.fixture(scope="module")
def weights(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def extractor(weights):
    return load_extractor(weights, config=CONFIG)


def test_cells_equal_the_pooled_map_of_torchvision(extractor, network, make_image):
    image = make_image(0, 80, 120)
    regions = extractor(image)
    assert rounded_size(height=80, width=120, min_side=64, max_side=128) == (64, 96)
    scaled = torchvision.transforms.functional.resize(
        torch.from_numpy(np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))),
        [64, 96],
        antialias=True,
    )
    blob = torchvision.transforms.functional.normalize(
        scaled / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    with torch.inference_mode():
        x = blob[None]
        for name in names:
            x = getattr(network, name)(x)
        expected = torch.nn.functional.adaptive_avg_pool2d(x, 7)[0].flatten(1).T.numpy()
    assert regions.features.shape == (49, 512)
    error = np.linalg.norm(regions.features - expected) / np.linalg.norm(expected)
    assert error < 2e-2  # bytes are rounded once, here and there, by other code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer", "channels"),
    [("alexnet", "features", 256), ("googlenet", "inception5b", 1024)],
)
def test_maps_of_alexnet_and_googlenet_are_those_of_torchvision(
    name, layer, channels, make_image, tmp_path
):
    torch.manual_seed(0)
    # GoogLeNet's file of torchvision is for an input that it normalises itself
    given = {"alexnet": {}, "googlenet": {"transform_input": True, "init_weights": False}}[name]
    network = torchvision.models.get_model(name, weights=None, **given).eval()
    # its classifiers may be absent
    kept = {k: v for k, v in network.state_dict().items() if not k.startswith(("class", "aux"))}
    torch.save(kept, tmp_path / "weights.pth")
    config = CONFIG.model_copy(
        update={"grid_backbone": name, "grid_layer": layer, "min_side": 224, "max_side": 224}
    )
    features = load_extractor(tmp_path / "weights.pth", config=config)(
        image := make_image(0, 224, 224)
    ).features
    scaled = torch.from_numpy(image[:, :, ::-1].transpose(2, 0, 1).copy()).float() / 255
    blob = torchvision.transforms.functional.normalize(
        scaled, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )[None]
    maps = []
    network.get_submodule(layer).register_forward_hook(lambda *call: maps.append(call[-1]))
    with torch.inference_mode():
        network(blob)
        expected = torch.nn.functional.adaptive_avg_pool2d(maps[0], 7)[0].flatten(1).T.numpy()
    assert features.shape == (49, channels)
    error = np.linalg.norm(features - expected) / np.linalg.norm(expected)
    assert error < 1e-4
    assert grid_width(config) == channels


def test_cells_divide_the_image_row_by_row(extractor, make_image):
    regions = extractor(make_image(0, 70, 140))
    assert regions.boxes[0].tolist() == [0, 0, 20, 10]
    assert regions.boxes[1].tolist() == [20, 0, 40, 10]
    assert regions.boxes[-1].tolist() == [120, 60, 140, 70]
    sides = regions.boxes[:, 2:] - regions.boxes[:, :2]
    assert sides.prod(axis=1).sum() == pytest.approx(70 * 140)
    assert set(regions.class_ids) == {-1}
    assert regions.attribute_ids is None


@pytest.mark.slow
def test_a_centre_crop_equals_torchvisions_and_its_cells_are_those_of_the_crop(
    extractor, weights, make_image
):
    image = make_image(0, 512, 768)
    config = CONFIG.model_copy(update={"grid_crop": "centre"})
    cropped = load_extractor(weights, config=config)(image)
    # 224 of the 256 x 384 pixels of the scaled image, in pixels of the original
    assert cropped.boxes[0].tolist() == [160, 32, 224, 96]
    assert cropped.boxes[-1].tolist() == [544, 416, 608, 480]
    halved = np.asarray(Image.fromarray(image).resize((384, 256), Image.Resampling.BILINEAR))
    middle = np.ascontiguousarray(halved[16:240, 80:304])
    uncropped = CONFIG.model_copy(update={"min_side": 224, "max_side": 224})
    expected = load_extractor(weights, config=uncropped)(middle).features
    np.testing.assert_allclose(cropped.features, expected, rtol=0, atol=1e-5)
    assert is_grid(cropped)
    assert is_grid(extractor(image))
    with pytest.raises(InputError, match=r"^image is too thin: 400 x 20 pixels; leave it out$"):
        load_extractor(weights, config=config)(make_image(0, 20, 400))


def test_images_that_pass_together_have_the_cells_of_each_alone(extractor, make_image):
    images = [make_image(seed, 80, 120) for seed in range(3)]
    with torch.inference_mode():
        together = extractor._extract([extractor._input(image, None) for image in images])()
    for regions, image in zip(together, images, strict=True):
        alone = extractor(image)
        error = np.linalg.norm(regions.features - alone.features)
        assert error < 1e-5 * np.linalg.norm(alone.features)
        assert np.array_equal(regions.boxes, alone.boxes)
        assert regions.features.base is None  # so that one image does not keep the others


def test_on_a_cpu_images_pass_one_by_one_and_keep_their_order(extractor, make_image):
    images = [make_image(seed, 80, 80 + 40 * (seed % 2)) for seed in range(4)]
    for regions, image in zip(extractor.extract_many(images, [None] * 4), images, strict=True):
        assert np.array_equal(regions.features, extractor(image).features)
        assert np.array_equal(regions.boxes, extractor(image).boxes)


def test_regions_are_no_grid_unless_they_divide_an_area_evenly(extractor, make_image):
    regions = extractor(make_image(0, 80, 120))
    moved = regions.boxes.copy()
    moved[5, 0] += 3
    for boxes in (moved, regions.boxes[::-1], regions.boxes[:48], np.zeros((49, 4), np.float32)):
        assert not is_grid(replace(regions, boxes=boxes))


def test_mixed_cells_are_near_the_exact_ones_and_the_record_names_them(
    extractor, weights, tmp_path, make_image, monkeypatch, caplog
):
    monkeypatch.setattr(proposal_precision, "has_bfloat16", lambda device: False)
    mixed = load_extractor(weights, config=CONFIG.model_copy(update={"precision": "mixed"}))
    image = make_image(0, 80, 120)
    rounded, expected = mixed(image).features, extractor(image).features
    assert rounded.dtype == np.float32
    assert 0 < np.linalg.norm(rounded - expected) < 2e-2 * np.linalg.norm(expected)
    mixed.save(tmp_path / "weights.safetensors")
    record = mixed.record(tmp_path / "weights.safetensors")
    assert (extractor.config.precision, record.config.precision) == ("exact", "mixed")
    assert caplog.messages == [
        "cpu emulates bfloat16, many times slower: extract.precision=mixed; set it to auto"
    ]


@pytest.mark.slow
def test_saved_weights_give_the_same_cells(extractor, tmp_path, make_image):
    extractor.save(tmp_path / "weights.safetensors")
    kept = load_grid_weights(tmp_path / "weights.safetensors", CONFIG.grid_backbone)
    assert "conv1.weight" in kept and "fc.weight" not in kept
    again = load_extractor(tmp_path / "weights.safetensors", config=CONFIG)
    image = make_image(0)
    assert np.array_equal(extractor(image).features, again(image).features)
    again.save(tmp_path / "again.safetensors")
    saved = (tmp_path / "weights.safetensors").read_bytes()
    assert (tmp_path / "again.safetensors").read_bytes() == saved


def test_the_record_describes_the_grid_and_has_no_detector(extractor, tmp_path):
    extractor.save(tmp_path / "weights.safetensors")
    record = extractor.record(tmp_path / "weights.safetensors")
    assert record.summary == "7 x 7 grid of layer4 of torchvision's resnet18"
    assert (record.feature_width, record.architecture, record.meta) == (512, None, None)
    record.write(tmp_path / "extractor.json")
    assert ExtractorRecord.read(tmp_path / "extractor.json") == record
    assert "meta" not in json.loads((tmp_path / "extractor.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "layer", "width"),
    [("vgg11", "features", 512), ("vgg19", "features.10", 256), ("resnet152", "layer3", 1024)],
)
def test_any_layer_of_any_backbone_has_its_width(backbone, layer, width):
    config = CONFIG.model_copy(update={"grid_backbone": backbone, "grid_layer": layer})
    assert grid_width(config) == width


UNKNOWN_LAYER = (
    "the backbone has no layer 'layer9' (extract.grid_layer); name one such as 'conv1', 'bn1', "
    "'relu', 'maxpool', 'layer1', 'layer2', 'layer3', 'layer4', 'avgpool', or one below it"
)
WITHOUT_MAP = "extract.grid_layer has no spatial map: 'fc' of resnet18; name a convolutional layer"


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "message"), [("layer9", UNKNOWN_LAYER), ("fc", WITHOUT_MAP)])
def test_a_layer_without_a_map_is_refused(layer, message):
    with pytest.raises(ConfigError) as error:
        grid_width(CONFIG.model_copy(update={"grid_layer": layer}))
    assert str(error.value) == message


@pytest.mark.slow
def test_weights_of_another_network_are_refused_with_their_keys(network):
    message = (
        "weights do not fit resnet18: 1 tensors are missing, unknown or of another shape, "
        "first {}; name its state dict, or correct extract.grid_backbone"
    )
    whole = network.state_dict()
    for wrong in ("conv1.weight", "layer1.0.bn1.bias"):
        tensors = {key: tensor for key, tensor in whole.items() if key != wrong}
        assert refusal(GridExtractor, tensors, config=CONFIG) == message.format(wrong)
    tensors = {**whole, "extra": torch.zeros(1)}
    assert refusal(GridExtractor, tensors, config=CONFIG) == message.format("extra")


@pytest.mark.slow
def test_saved_weights_of_another_backbone_or_of_a_detector_are_refused(
    extractor, detector, tmp_path
):
    path = tmp_path / "a.safetensors"
    for save, network in (
        (extractor.save, "resnet18"),
        (partial(save_detector, detector), "another network"),
    ):
        save(path)
        assert refusal(load_grid_weights, path, "resnet50") == (
            f"weights 'a.safetensors' are of {network}, extract.grid_backbone is 'resnet50'; "
            "name weights of the latter, or correct extract.grid_backbone"
        )
