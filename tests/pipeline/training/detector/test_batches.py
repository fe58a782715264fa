"""Tests of batches of labelled images, which depend only on seed, epoch and index."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from a2cap.data.batches.loader import ALL, Share
from a2cap.data.batches.sampling import epoch_order, is_mirrored
from a2cap.data.detection.labels import DetectionData
from a2cap.data.errors import InputError
from a2cap.extract.image import read_image
from a2cap.pipeline.training.detector.data import read_detector_data
from a2cap.pipeline.training.detector.train import (
    DetectorDataset,
    LabelledItem,
    collate,
    mirrored,
    new_detector,
)
from a2cap.pipeline.training.task import Batches

SEED = 3


@pytest.fixture(scope="module")
def data(labelled):
    return read_detector_data(labelled.config()).training


@pytest.fixture(scope="module")
def make(labelled, data):
    """Return a function that gives the batches of a training with some fields changed."""

    def make(share=ALL, workers=0, **changes):
        config = labelled.config(seed=SEED, batch_size=5, **changes)
        dataset = DetectorDataset(data, flip=config.flip, seed=config.seed)
        scaled = partial(collate, meta=new_detector(config, data).meta)
        return Batches(dataset, scaled, config, share, workers)

    return make


def assert_equal_items(one, other):
    assert one.labels.image_id == other.labels.image_id
    assert np.array_equal(one.pixels, other.pixels)
    assert np.array_equal(one.labels.boxes, other.labels.boxes)


def assert_equal_parts(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert [part.image_ids for part in one] == [part.image_ids for part in other]
        for mine, its in zip(one, other, strict=True):
            torch.testing.assert_close(vars(mine.batch), vars(its.batch), rtol=0, atol=0)


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
    found = mirrored(item)
    assert found.pixels.flags["C_CONTIGUOUS"]
    for box, other in zip(labels.boxes.astype(int), found.labels.boxes.astype(int), strict=True):
        x1, y1, x2, y2 = box
        inside = item.pixels[y1:y2, x1:x2]
        x1, y1, x2, y2 = other
        assert np.array_equal(found.pixels[y1:y2, x1:x2], inside[:, ::-1])
    assert np.array_equal(found.labels.class_ids, labels.class_ids)
    assert found.labels.attribute_ids == labels.attribute_ids


def test_an_epoch_contains_every_image_once_in_the_order_of_its_seed(make, data):
    batches = make()
    assert len(batches) == 3
    found = [part.image_ids for [part] in batches.epoch(1, start=0)]
    assert [len(names) for names in found] == [5, 5, 2]
    order = epoch_order(12, seed=SEED, epoch=1)
    assert [name for names in found for name in names] == [
        data.images[index].image_id for index in order
    ]


@pytest.mark.parametrize(("start", "workers"), [(1, 0), (2, 0), (3, 0), (1, 2)])
def test_an_epoch_can_start_at_any_batch_with_any_loader(make, start, workers):
    whole = list(make().epoch(2, start=0))
    assert_equal_parts(make(workers=workers).epoch(2, start=start), whole[start:])


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "parts"), [(1, 2), (2, 1), (3, 2)])
def test_the_shares_of_all_ranks_add_up_to_the_batches(make, ranks, parts):
    whole = [set(part.image_ids) for [part] in make().epoch(0, start=0)]
    shares = [make(share=Share(rank, ranks, parts)).epoch(0, start=0) for rank in range(ranks)]
    for names, *of_all in zip(whole, *shares, strict=True):
        found = [name for share in of_all for part in share for name in part.image_ids]
        assert sorted(found) == sorted(names)


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
