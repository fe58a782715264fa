"""Tests of batches of labelled images, which depend only on seed, epoch and index."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from a2cap.data.batches.loader import Batches
from a2cap.data.batches.sampling import is_mirrored
from a2cap.data.detection.labels import DetectionData
from a2cap.data.errors import InputError
from a2cap.extract.image import read_image
from a2cap.pipeline.training.detector.labelled_images import read_detector_data
from a2cap.pipeline.training.detector.train import (
    DetectorDataset,
    LabelledItem,
    collate,
    mirrored,
    new_detector,
)

SEED = 3


@pytest.fixture(scope="module")
def data(labelled):
    return read_detector_data(labelled.config()).training


@pytest.fixture(scope="module")
def make(labelled, data):
    """Return a function that gives the batches of a training with some fields changed."""

    def make(workers=0, **changes):
        config = labelled.config(seed=SEED, batch_size=5, **changes)
        dataset = DetectorDataset(data, flip=config.flip, seed=config.seed)
        scaled = partial(collate, meta=new_detector(config, data).meta)
        return Batches(dataset, scaled, config.batch_size, config.seed, workers=workers)

    return make


def assert_equal_items(first, second):
    assert first.labels.image_id == second.labels.image_id
    assert np.array_equal(first.pixels, second.pixels)
    assert np.array_equal(first.labels.boxes, second.labels.boxes)


@pytest.mark.parametrize("flip", [True, False])
def test_seed_epoch_and_index_decide_if_an_item_is_mirrored(data, flip):
    dataset = DetectorDataset(data, flip=flip, seed=SEED)
    shown = set()
    for epoch in range(3):
        for index, labels in enumerate(data.images):
            plain = LabelledItem(read_image(labels.file), labels)
            turned = flip and is_mirrored(seed=SEED, epoch=epoch, index=index)
            assert_equal_items(dataset[epoch, index], mirrored(plain) if turned else plain)
            shown.add(turned)
    assert shown == {False, flip}


def test_a_mirrored_box_contains_the_mirrored_pixels(data):
    labels = replace(data.images[0], boxes=np.floor(data.images[0].boxes))
    item = LabelledItem(read_image(labels.file), labels)
    mirror = mirrored(item)
    assert mirror.pixels.flags["C_CONTIGUOUS"]
    for box, other in zip(labels.boxes.astype(int), mirror.labels.boxes.astype(int), strict=True):
        x1, y1, x2, y2 = box
        inside = item.pixels[y1:y2, x1:x2]
        x1, y1, x2, y2 = other
        assert np.array_equal(mirror.pixels[y1:y2, x1:x2], inside[:, ::-1])
    assert np.array_equal(mirror.labels.class_ids, labels.class_ids)
    assert mirror.labels.attribute_ids == labels.attribute_ids


@pytest.mark.slow
def test_an_image_damaged_after_its_header_is_reported_with_any_loader(make, tmp_path):
    first, *others = make().dataset.images
    whole = first.file.read_bytes()
    cut = tmp_path / first.file.name
    cut.write_bytes(whole[: len(whole) // 2])
    damaged = DetectionData((), (), (replace(first, file=cut), *others))
    for workers in (0, 1):
        batches = replace(
            make(workers=workers), dataset=DetectorDataset(damaged, flip=True, seed=0)
        )
        with pytest.raises(InputError, match=f"^image '{cut.name}' cannot be decoded: .*again$"):
            list(batches.epoch(0, start=0))


def test_a_part_is_scaled_as_in_extraction(make, data):
    items = [LabelledItem(read_image(p.file), p) for p in data.images[:2]]
    part = make(min_side=48, max_side=48).collate(items)
    assert part.image_ids == tuple(image.image_id for image in data.images[:2])
    assert part.batch.images.shape == (2, 3, 48, 48)
    np.testing.assert_allclose(part.batch.boxes[0], data.images[0].boxes / 2, atol=1e-4)
