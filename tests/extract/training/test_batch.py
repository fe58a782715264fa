import pytest
import torch

from a2cap.extract.detector.input import scaled_batch
from a2cap.extract.training.batch import labelled_batch
from tests.extract.tiny import labelled, tiny_meta

META = tiny_meta(sizes=(16,))


@pytest.fixture
def images(make_image):
    return [make_image(0, 32, 40), make_image(1, 64, 32)]


def test_images_are_scaled_as_for_extraction_and_padded_with_zeros(images):
    batch = labelled_batch(images, [labelled([]), labelled([])], meta=META)
    assert len(batch) == 2
    assert batch.images.shape == (2, 3, 96, 80)
    assert [(size.height, size.width) for size in batch.sizes] == [(64, 80), (96, 48)]
    for index, image in enumerate(images):
        (blob,), (size,) = scaled_batch([image], scale=(64, 96), meta=META)
        assert size == batch.sizes[index]
        own = batch.images[index, :, : size.height, : size.width]
        assert torch.equal(own, torch.from_numpy(blob))
        assert batch.images[index].abs().sum() == own.abs().sum()


def test_boxes_are_scaled_with_their_image(images):
    batch = labelled_batch(
        images, [labelled([[1, 2, 30, 20]]), labelled([[0, 0, 32, 64]])], meta=META
    )
    assert batch.boxes[0].tolist() == [[2, 4, 60, 40]]
    assert batch.boxes[1].tolist() == [[0, 0, 48, 96]]
    assert [ids.tolist() for ids in batch.class_ids] == [[0], [0]]


def test_crowds_are_separate_and_boxes_without_an_area_are_dropped(images):
    boxes = [[0, 0, 8, 8], [5, 5, 5, 9], [10, 10, 20, 20]]
    given = labelled(boxes, attribute_ids=[(1,), (), ()], crowd=[False, False, True])
    batch = labelled_batch(images[:1], [given], meta=META)
    assert batch.boxes[0].tolist() == [[0, 0, 16, 16]]
    assert batch.class_ids[0].tolist() == [0]
    assert batch.attribute_ids[0].tolist() == [[1]]
    assert batch.crowds[0].tolist() == [[20, 20, 40, 40]]


def test_attributes_are_padded_with_minus_one(images):
    given = labelled([[0, 0, 8, 8]] * 3, attribute_ids=[(4, 2), (), (1,)])
    batch = labelled_batch(images[:1], [given], meta=META)
    assert batch.attribute_ids[0].tolist() == [[4, 2], [-1, -1], [1, -1]]


def test_all_tensors_of_a_batch_move_to_a_device(images):
    batch = labelled_batch(images[:1], [labelled([[0, 0, 8, 8]])], meta=META).to("meta")
    tensors = (batch.images, *batch.boxes, *batch.class_ids, *batch.attribute_ids, *batch.crowds)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
