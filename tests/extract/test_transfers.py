"""Waits for a GPU, counted on fake tensors."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from a2cap.extract import extractor, grid
from a2cap.extract.detector import proposal_precision, proposals
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import BATCH
from a2cap.extract.detector.proposal_precision import MixedPrecision
from a2cap.extract.extract_config import ExtractConfig
from tests.extract.tiny import CONFIG, TINY
from tests.kernels import fake_gpu

KERNELS = 1000
"""Most kernels of an image."""


class RoughPrecision(MixedPrecision):
    """Mixed precision without a copy of the heads, which fake tensors cannot make."""

    def __init__(self, detector):
        pass

    def class_logits(self, detector, features, rois, *, roi_size):
        return rois.new_zeros(len(rois), detector.architecture.classes + 1)


@pytest.fixture
def fake_operators(monkeypatch):
    """Replace what fake tensors cannot do: become arrays, and torchvision's operators."""

    def blank(tensor):
        return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))

    def from_array(array):
        return torch.zeros(array.shape, dtype=getattr(torch, str(array.dtype)))

    def pool(maps, rois, *, size, scale, chunk):
        for some in torch.split(rois, chunk):
            yield maps.new_zeros(len(some), maps.shape[1], size, size)

    monkeypatch.setattr(FakeTensor, "numpy", blank, raising=False)
    monkeypatch.setattr(FakeTensor, "pin_memory", lambda tensor: tensor, raising=False)
    # parameters are made where they are used
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
    monkeypatch.setattr(torch, "from_numpy", from_array)
    monkeypatch.setattr(proposal_precision, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(extractor, "MixedPrecision", RoughPrecision)
    proposals._anchors_on.cache_clear()
    yield pool
    proposals._anchors_on.cache_clear()


@pytest.fixture
def stream(monkeypatch):
    """Return the stream of the fake GPU, on which each copy to the CPU records an event."""
    stream = Mock()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def start_twice(extract, images, boxes, kernels):
    """Start a batch; return waits and kernels of doing so again, after constants are copied."""
    extract.start(images, boxes)
    kernels.take()
    extract.start(images, boxes)
    return dict(kernels.waits), kernels.count


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["exact", "mixed"])
def test_a_gpu_is_waited_for_once_a_batch(fake_operators, make_image, asked, stream):
    config = CONFIG.model_copy(update={"precision": asked})
    with fake_gpu() as kernels, torch.inference_mode():
        with torch.device("cuda"):
            detector = Detector(TINY, caffe_meta(origin="test", classes=TINY.classes))
        extract = extractor.Extractor(detector, config=config, device="cuda")
        extract._network.pool = fake_operators
        # two sizes, which pass the backbone padded with `mixed`
        images = [make_image(seed, 96 + seed % 2 * 8, 128) for seed in range(BATCH)]
        waits, count = start_twice(extract, images, [None] * BATCH, kernels)
    # the copy to the CPU is begun, and nothing waits for it until the regions are taken
    assert (waits, stream.record_event.call_count) == ({}, 2)
    assert not stream.record_event().synchronize.called
    assert count <= KERNELS * BATCH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "fields", "batches"),
    [
        ("efficientnet-lite0", {}, 1),
        ("efficientnet-lite0", {"boxes": "given"}, 1),
        # images keep their shapes, unless a part of one size is cut
        ("resnet18", {}, 2),
        ("resnet18", {"grid_crop": "centre"}, 1),
    ],
)
def test_images_of_a_grid_that_have_one_size_are_copied_once(
    fake_operators, make_image, stream, monkeypatch, backbone, fields, batches
):
    monkeypatch.setattr(grid, "roi_align", fake_operators)
    config = ExtractConfig(**{"boxes": "grid", "grid_backbone": backbone, **fields})
    images = [make_image(seed, 96, 128 if seed % 2 else 192) for seed in range(BATCH)]
    boxes = [np.float32([[0, 0, 9, 9]] * (1 + seed)) for seed in range(BATCH)]
    with fake_gpu() as kernels:
        with torch.device("cuda"):
            weights = grid._backbone(backbone).state_dict()
            extract = grid.GridExtractor(weights, config=config, device="cuda")
        waits, _ = start_twice(extract, images, boxes, kernels)
        copies = stream.record_event.call_count
        regions = extract.start(images, boxes)()
    assert (waits, copies) == ({}, 2 * batches)
    assert stream.record_event().synchronize.call_count == batches
    assert [len(r.features) for r in regions] == [
        1 + seed if config.boxes == "given" else 196 for seed in range(BATCH)
    ]
