"""bfloat16 decides, float32 is stored; whole ResNet-101 figures come from benchmarks/extract.py."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from a2cap.extract.detector import proposal_precision
from a2cap.extract.detector.proposal_precision import (
    MixedPrecision,
    has_bfloat16,
    resolve_proposal_precision,
)
from a2cap.extract.detector.region_selection import RegionSelection
from a2cap.extract.extract_config import LITE
from a2cap.extract.extractor import Extractor
from tests.extract.tiny import CONFIG, relative

EXACT = CONFIG
MIXED = EXACT.model_copy(update={"precision": "mixed"})
AUTO = EXACT.model_copy(update={"precision": "auto"})
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Leave out compiling, which takes seconds and is tested by itself."""
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(proposal_precision, "has_bfloat16", lambda device: True)


def test_selected_regions_that_were_not_likely_are_computed_too(detector, make_image, monkeypatch):
    monkeypatch.setattr(RegionSelection, "with_margin", lambda self: replace(self, max_regions=2))
    regions = Extractor(detector, config=MIXED)(make_image(0))
    exact = Extractor(detector, config=EXACT)(make_image(0))
    assert len(regions) == len(exact)
    rows = [exact.boxes.tolist().index(box) for box in regions.boxes.tolist()]
    assert np.array_equal(regions.features, exact.features[rows])


@pytest.mark.slow
def test_bfloat16_logits_are_close_to_float32_logits(detector):
    maps = torch.rand(1, 32, 12, 16, generator=torch.Generator().manual_seed(0))
    rois = torch.tensor([[0.0, 3, 3, 90, 80], [0, 40, 10, 120, 60]])
    with torch.inference_mode():
        logits = MixedPrecision(detector).class_logits(detector, maps, rois, roi_size=7)
        expected = detector.predict(maps, rois, roi_size=7).class_logits
    assert logits.dtype == torch.float32
    assert relative(logits, expected) < 2e-2


@pytest.mark.parametrize(
    ("fields", "fast", "slow"),
    [
        ({"precision": "auto"}, "mixed", "exact"),
        ({"precision": "exact"}, "exact", "exact"),
        ({"precision": "mixed"}, "mixed", "mixed"),
        ({"precision": "auto", "boxes": "given"}, "exact", "exact"),
        ({"precision": "mixed", "boxes": "given"}, "exact", "exact"),
        ({"precision": "auto", "boxes": "grid"}, "exact", "exact"),
        ({"precision": "mixed", "boxes": "grid"}, "mixed", "mixed"),
        ({"precision": "mixed", "boxes": "given", "grid_backbone": LITE[2]}, "mixed", "mixed"),
        ({"precision": "auto", "boxes": "given", "grid_backbone": LITE[2]}, "exact", "exact"),
        ({"precision": "auto", "backend": "detectron2"}, "exact", "exact"),
    ],
)
def test_the_precision_follows_from_the_kind_of_processor_and_keys_name_a_choice_alone(
    monkeypatch, fields, fast, slow
):
    config = EXACT.model_copy(update=fields)
    assert config.precision_in_key == (fast if fast == slow else "auto")
    for is_fast, expected in ((True, fast), (False, slow)):
        monkeypatch.setattr(proposal_precision, "has_bfloat16", lambda device, yes=is_fast: yes)
        assert resolve_proposal_precision(config, CPU) == expected


@pytest.mark.parametrize("asked", [MIXED, AUTO])
def test_mixed_warns_where_bfloat16_is_emulated(detector, monkeypatch, caplog, asked):
    monkeypatch.setattr(proposal_precision, "has_bfloat16", lambda device: False)
    extractor = Extractor(detector, config=asked)
    message = "cpu emulates bfloat16, many times slower: extract.precision=mixed; set it to auto"
    is_mixed = asked is MIXED
    assert (extractor.config.precision, caplog.messages) == (
        "mixed" if is_mixed else "exact",
        [message] * is_mixed,
    )


@pytest.mark.slow
def test_heads_that_do_not_compile_run_uncompiled(detector, make_image, monkeypatch, caplog):
    def fail(module, **_):
        def call(batch):
            raise RuntimeError("no C++ compiler\nand a long story")

        return call

    expected = Extractor(detector, config=MIXED)(make_image(0))
    monkeypatch.setattr(torch, "compile", fail)
    with caplog.at_level(logging.WARNING):
        regions = Extractor(detector, config=MIXED)(make_image(0))
    assert caplog.messages == ["bfloat16 selection runs uncompiled: no C++ compiler"]
    assert np.array_equal(regions.features, expected.features)


def test_heads_without_memory_are_not_taken_for_a_compiler_that_fails(detector, monkeypatch):
    def fail(batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda module, **_: fail)
    mixed = MixedPrecision(detector)
    with pytest.raises(torch.OutOfMemoryError):
        mixed._features(torch.rand(1, 4, 2, 2))
    monkeypatch.setattr(torch, "compile", lambda module, **_: lambda batch: batch)
    assert len(mixed._features(torch.rand(1, 4, 2, 2))) == 1


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)]
)
def test_a_gpu_has_bfloat16_from_cuda_8_on(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bfloat16(torch.device("cuda", 0)) is expected


@pytest.mark.parametrize("flag", [True, False])
def test_a_cpu_has_bfloat16_with_avx512_bf16(monkeypatch, flag):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: flag, raising=False)
    assert has_bfloat16(CPU) is flag
    assert not has_bfloat16(torch.device("meta"))
