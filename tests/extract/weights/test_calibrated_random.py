import hashlib

import numpy as np
import pytest
import torch

from a2cap.data.errors import InputError
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extractor import Extractor
from a2cap.extract.weights.calibrated_random import calibrate
from a2cap.extract.weights.load import save_detector

SIZES = {"min_side": 96, "max_side": 160, "roi_size": 7}


def digest(detector, path):
    save_detector(detector, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_equal_images_and_seed_give_equal_bytes(tiny, make_image, tmp_path):
    images = [make_image(1), make_image(2)]
    first, again = (
        digest(calibrate(images, tiny, **SIZES, seed=3), tmp_path / name) for name in "ab"
    )
    assert first == again


@pytest.mark.slow
def test_another_seed_or_other_images_give_other_weights(tiny, make_image, tmp_path):
    runs = [([make_image(1)], 3), ([make_image(1)], 4), ([make_image(2)], 3)]
    digests = {
        digest(calibrate(images, tiny, **SIZES, seed=seed), tmp_path / "a") for images, seed in runs
    }
    assert len(digests) == 3


def test_calibration_does_not_change_the_global_rng_state(tiny, make_image):
    before = torch.get_rng_state()
    calibrate([make_image(1)], tiny, **SIZES, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_images_of_several_sizes_and_of_one_colour_give_finite_weights(tiny, make_image):
    flat = np.full((50, 50, 3), 128, np.uint8)
    for images in ([make_image(1, 60, 90), make_image(2, 90, 60), make_image(3, 10, 100)], [flat]):
        detector = calibrate(images, tiny, **SIZES, seed=0)
        assert all(tensor.isfinite().all() for tensor in detector.state_dict().values())


def test_calibration_without_images_is_refused(tiny):
    message = "no images to calibrate random weights on; check that data.images holds some"
    with pytest.raises(InputError, match=message):
        calibrate([], tiny, **SIZES, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 101])
def test_activations_stay_in_range_at_any_depth(depth, make_image):
    images = [make_image(seed, 160, 200) for seed in range(4)]
    detector = calibrate(
        images, Architecture(depth), min_side=160, max_side=320, roi_size=14, seed=0
    )
    config = ExtractConfig(min_side=160, max_side=320, proposals=60, min_regions=36)
    regions = Extractor(detector, config=config)(make_image(9, 160, 200))
    assert regions.features.shape[1] == detector.architecture.feature_width
    assert np.isfinite(regions.features).all()
    assert 0.1 < regions.features.mean() < 5
    assert 0.1 < regions.features.std() < 5
    assert regions.features.std(axis=0).mean() > 0.05  # regions differ
    assert 0.1 < regions.scores.max() < 1
    assert len(set(regions.class_ids)) > 3
