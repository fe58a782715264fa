"""Numbers of weights that cannot be right, and conventions that are stored as tensors."""

import logging

import pytest
import torch
from safetensors.torch import save_file

from a2cap.data.errors import WeightsError
from a2cap.extract.extract_config import META_KEY
from a2cap.extract.grid import load_grid_weights
from a2cap.extract.weights.initial import initialise_from, random_detector
from a2cap.extract.weights.load import load_detector
from tests.extract.tiny import refusal, seeded

STEM = "backbone.stem.conv1"
CAFFE_MEAN = torch.tensor([102.9801, 115.9465, 122.7717])


def written(tensors, path):
    """Write tensors as airsplay's layout in a file of torch."""
    torch.save(dict(tensors), path)
    return path


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("proposal_generator.rpn_head.objectness_logits.weight", float("nan"), "not finite"),
        ("roi_heads.box_predictor.bbox_pred.weight", float("inf"), "not finite"),
        ("roi_heads.box_predictor.attr_score.bias", -float("inf"), "not finite"),
        (f"{STEM}.norm.running_var", float("inf"), "not finite"),
        (f"{STEM}.norm.running_var", -1.0, "negative variances"),
    ],
)
def test_numbers_that_cannot_be_right_are_refused(detector, tmp_path, form, key, value, what):
    path = tmp_path / "a"
    # contiguous: extractors leave the weights channels-last
    tensors = {name: tensor.contiguous().clone() for name, tensor in detector.state_dict().items()}
    tensors[key].view(-1)[:2] = value
    if form == "torch":
        written(tensors, path)
    else:
        save_file(tensors, path, {META_KEY: detector.meta.model_dump_json()})
    assert refusal(load_detector, path) == (
        f"weights 'a' cannot be right: 2 of {tensors[key].numel()} numbers of {key!r} are {what}; "
        "download the file again, or write it in float32"
    )


def test_a_variance_that_overflowed_float16_is_refused(detector, tmp_path):
    """Its channel would be 0 everywhere: finite features, all wrong."""
    tensors = dict(detector.state_dict())
    for key in (f"{STEM}.norm.running_var", "backbone.res2.0.conv1.norm.running_var"):
        tensors[key] = tensors[key] + 70_000
    path = written({key: tensor.half() for key, tensor in tensors.items()}, tmp_path / "half.pth")
    assert refusal(load_detector, path) == (
        "weights 'half.pth' cannot be right: 8 of 8 numbers of "
        "'backbone.res2.0.conv1.norm.running_var' are not finite, and others of 1 more tensors; "
        "download the file again, or write it in float32"
    )


def test_networks_for_grids_and_for_training_are_checked_too(detector, tmp_path):
    tensors = {key: tensor.clone() for key, tensor in detector.state_dict().items()}
    tensors[f"{STEM}.weight"][0, 0, 0, 0] = float("nan")
    path = written(tensors, tmp_path / "a.pth")
    target = random_detector(detector.architecture, detector.meta, generator=seeded())
    for load in (
        lambda: load_grid_weights(path, "resnet18"),
        lambda: initialise_from(target, tensors, name="a.pth"),
    ):
        with pytest.raises(WeightsError, match=rf"1 of 1176 numbers of '{STEM}\.weight' are not"):
            load()


def test_a_stored_mean_is_honoured_aloud(detector, tmp_path, caplog):
    tensors = dict(detector.state_dict())
    for mean in (CAFFE_MEAN.view(3, 1, 1), torch.tensor([103.5, 116.25, 123.75])):
        loaded = load_detector(written({**tensors, "pixel_mean": mean}, tmp_path / "a.pth"))
    assert loaded.meta.mean == (103.5, 116.25, 123.75)
    assert caplog.record_tuples == [
        (
            "a2cap.extract.weights.checkpoint_layouts",
            logging.WARNING,
            "weights 'a.pth' subtract 103.5 116.25 123.75, stored with them, "
            "instead of their layout's 102.98 115.947 122.772",
        )
    ]
    path = written({**tensors, "pixel_mean": CAFFE_MEAN.flip(0)}, tmp_path / "a.pth")
    assert refusal(load_detector, path) == (
        "weights 'a.pth' are for images in red, green, blue: their pixel_mean is 122.772 115.947 "
        "102.98; flip the input channels of the first convolution"
    )


def test_a_stored_deviation_and_epsilon_change_the_network_as_they_say(detector, tmp_path):
    deviation, epsilon = torch.tensor([57.0, 58, 59]), torch.tensor(1e-2)
    tensors = {**detector.state_dict(), "pixel_std": deviation, f"{STEM}.norm.eps": epsilon}
    loaded = load_detector(written(tensors, tmp_path / "a.pth"))
    image = torch.rand(1, 3, 32, 32, generator=seeded()) * 50
    stem, norm = detector.backbone.stem, detector.backbone.stem.conv1.norm
    weight = stem.conv1.weight
    with torch.inference_mode():
        x = torch.conv2d(image / deviation.view(3, 1, 1), weight, stride=2, padding=3)
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        x = torch.nn.functional.batch_norm(x, *statistics, eps=float(epsilon))
        expected = torch.nn.functional.max_pool2d(x.relu(), 3, 2, ceil_mode=True)
        torch.testing.assert_close(loaded.backbone.stem(image), expected, rtol=1e-4, atol=1e-5)
