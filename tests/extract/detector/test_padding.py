"""Several images in one pass of the backbone: padding changes nothing."""

import numpy as np
import pytest
import torch

from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.input import LIKE, batches_of_like_size, scaled_batch
from a2cap.extract.detector.padding import maps_of_each, padded_batch
from a2cap.extract.extractor import Extractor
from a2cap.extract.image import read_image
from tests.extract.tiny import CONFIG, TINY, relative, with_meta
from tests.random_detector import random_detector

SIZES = [(96, 128), (96, 130), (96, 117), (90, 131)]  # odd and even at each stage


@pytest.mark.parametrize("pool", ["no padding, rounded up", "padding 1"])
@pytest.mark.parametrize("depth", [18, 50])
def test_padded_images_have_the_maps_of_single_ones(detector, make_image, depth, pool):
    if depth == 50:
        sizes = {**vars(TINY), "depth": 50}
        detector = random_detector(
            [make_image(1)], type(TINY)(**sizes), min_side=96, max_side=160, roi_size=7, seed=0
        )
    network = fuse(with_meta(detector, detector.meta.model_copy(update={"stem_pool": pool})))
    images = [make_image(seed, *size) for seed, size in enumerate(SIZES)]
    blobs, sizes = scaled_batch(images, scale=(96, 160), meta=network.meta)
    with torch.inference_mode():
        alone = [network(torch.from_numpy(blob)[None]) for blob in blobs]
        batch = padded_batch(blobs)
        together = maps_of_each(network, batch, sizes)
        unmasked = network(batch)
    for index, (found, expected) in enumerate(zip(together, alone, strict=True)):
        assert found.shape == expected.shape
        assert relative(found, expected) < 1e-5
        rows, columns = expected.shape[2:]
        if blobs[index].shape != tuple(batch.shape[1:]):  # negative control
            assert relative(unmasked[index : index + 1, :, :rows, :columns], expected) > 1e-3


def test_batches_of_like_size_contain_each_image_once():
    shapes = np.random.default_rng(0).integers(50, 100, (40, 2)).tolist()
    images = {index: np.zeros((*shape, 3), np.uint8) for index, shape in enumerate(shapes)}
    batches = list(batches_of_like_size(images, most=4))
    assert sorted(index for batch in batches for index in batch) == sorted(images)
    assert max(map(len, batches)) == 4
    for batch in batches:
        aspects = [shapes[index][0] / shapes[index][1] for index in batch]
        assert max(aspects) <= LIKE * min(aspects)
    assert all(len(batch) == 1 for batch in batches_of_like_size(images, most=1))


def assert_equal_regions(extractor, images):
    extractor.batch = 1
    alone = extractor.extract_many(images, [None] * len(images))
    extractor.batch = 8  # as on a GPU
    for found, expected in zip(
        extractor.extract_many(images, [None] * len(images)), alone, strict=True
    ):
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-3)
        error = np.abs(found.features - expected.features).max()
        assert error <= 1e-5 * np.abs(expected.features).max()
        assert np.array_equal(found.class_ids, expected.class_ids)
        assert (found.width, found.height) == (expected.width, expected.height)


def test_images_in_batches_have_the_regions_of_single_ones(detector, make_image):
    images = [make_image(seed, *size) for seed, size in enumerate([*SIZES, (128, 96), (80, 80)])]
    assert_equal_regions(Extractor(detector, config=CONFIG), images)


@pytest.mark.slow
@pytest.mark.shared
def test_coco_images_in_batches_have_the_regions_of_single_ones(detector, shared):
    files = sorted((shared / "coco" / "images").rglob("*.jpg"))[::16]
    images = [read_image(file) for file in files]
    assert_equal_regions(Extractor(detector, config=CONFIG), images)
