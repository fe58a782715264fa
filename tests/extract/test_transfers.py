"""Waits for a GPU, counted on fake tensors."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from a2cap.extract import extractor
from a2cap.extract.detector import proposal_precision, proposals
from a2cap.extract.detector.conventions import caffe_meta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.input import BATCH
from a2cap.extract.detector.proposal_precision import MixedPrecision
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


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["exact", "mixed"])
def test_a_gpu_is_waited_for_once_a_batch(fake_operators, make_image, asked, monkeypatch):
    stream = Mock()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    config = CONFIG.model_copy(update={"precision": asked})
    with fake_gpu() as kernels, torch.inference_mode():
        with torch.device("cuda"):
            detector = Detector(TINY, caffe_meta(origin="test", classes=TINY.classes))
        extract = extractor.Extractor(detector, config=config, device="cuda")
        extract._network.pool = fake_operators
        images = [make_image(seed) for seed in range(BATCH)]
        extract.start(images, [None] * BATCH)  # copies the anchors
        kernels.take()
        extract.start(images, [None] * BATCH)
        waits, count = dict(kernels.waits), kernels.count
    # the copy to the CPU is begun, and nothing waits for it until the regions are taken
    assert (waits, stream.record_event.call_count) == ({}, 2)
    assert not stream.record_event().synchronize.called
    assert count <= KERNELS * BATCH
