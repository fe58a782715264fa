"""bfloat16 decides, float32 is stored; whole ResNet-101 figures come from benchmarks/extract.py."""

import logging

import numpy as np
import pytest
import torch

from a2cap.extract.detector import mixed_precision as mixed
from a2cap.extract.detector.mixed_precision import SelectionHeads
from a2cap.extract.extractor import Extractor
from tests.extract.tiny import CONFIG, relative

EXACT = CONFIG
MIXED = EXACT.model_copy(update={"precision": "mixed"})
INT8 = EXACT.model_copy(update={"precision": "int8"})
AUTO = EXACT.model_copy(update={"precision": "auto"})
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fast_and_uncompiled(monkeypatch):
    """Emulate bfloat16 where it is missing; compiling takes seconds and is tested by itself."""
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(mixed, "bfloat16_gain", lambda *_, **__: 2.0)


@pytest.mark.slow
def test_mixed_keeps_the_same_regions_with_the_features_of_exact(detector, make_image):
    kept = matched = 0
    for seed in range(3):
        exact, other = (
            Extractor(detector, config=config)(make_image(seed)) for config in (EXACT, MIXED)
        )
        where = {tuple(box): row for row, box in enumerate(exact.boxes)}
        rows = [(where[tuple(b)], row) for row, b in enumerate(other.boxes) if tuple(b) in where]
        kept, matched = kept + len(exact.boxes), matched + len(rows)
        ours, theirs = np.array(rows).T
        assert np.array_equal(other.features[theirs], exact.features[ours])
        assert np.array_equal(other.class_ids[theirs], exact.class_ids[ours])
    assert matched / kept >= 0.95  # of a tiny network; of ResNet-101 see the benchmark


@pytest.mark.slow
def test_regions_outside_the_candidates_are_computed_too(detector, make_image, monkeypatch):
    expected = Extractor(detector, config=MIXED)(make_image(0))
    choose = Extractor._choose

    def too_few(self, boxes, class_logits, *, with_margin=False):
        chosen = choose(self, boxes, class_logits, with_margin=with_margin)
        return chosen[:2] if with_margin else chosen

    monkeypatch.setattr(Extractor, "_choose", too_few)
    regions = Extractor(detector, config=MIXED)(make_image(0))
    assert len(regions) == len(expected)
    alone = Extractor(detector, config=EXACT.model_copy(update={"boxes": "given"}))
    again = alone(make_image(0), regions.boxes)
    np.testing.assert_allclose(regions.features, again.features, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_bfloat16_logits_are_close_to_float32_logits(detector):
    maps = torch.rand(1, 32, 12, 16, generator=torch.Generator().manual_seed(0))
    rois = torch.tensor([[0.0, 3, 3, 90, 80], [0, 40, 10, 120, 60]])
    with torch.inference_mode():
        logits = SelectionHeads(detector).class_logits(maps, rois, roi_size=7)
        expected = detector.predict(maps, rois, roi_size=7).class_logits
    assert logits.dtype == torch.float32
    assert relative(logits, expected) < 2e-2


@pytest.mark.parametrize(
    ("asked", "gain", "int8_gain", "chosen", "message"),
    [
        (MIXED, 0.0, 0.0, "exact", "cpu has no bfloat16: extract.precision=mixed runs as exact"),
        (
            MIXED,
            0.6,
            0.0,
            "mixed",
            "extract.precision=mixed is slow on cpu: a convolution is 0.6 times as fast in "
            "bfloat16 as in float32; set extract.precision=auto",
        ),
        (MIXED, 3.0, 0.0, "mixed", None),
        (EXACT, 3.0, 0.0, "exact", None),
        (AUTO, 0.0, 0.0, "exact", "extract.precision: exact, because cpu has no bfloat16"),
        (AUTO, 0.0, 1.9, "exact", "extract.precision: exact, because cpu has no bfloat16"),
        (
            AUTO,
            1.4,
            0.0,
            "exact",
            "extract.precision: exact, because a convolution is 1.4 times as fast in bfloat16 as "
            "in float32",
        ),
        (
            AUTO,
            1.5,
            2.2,
            "mixed",
            "extract.precision: mixed, because a convolution is 1.5 times as fast in bfloat16 as "
            "in float32",
        ),
        (
            AUTO,
            0.0,
            2.2,
            "int8",
            "extract.precision: int8, because a block of res5 is 2.2 times as fast in int8 as in "
            "float32",
        ),
        (INT8, 0.0, 1.2, "int8", None),
        (
            INT8,
            0.0,
            0.0,
            "exact",
            "extract.precision=int8 runs as exact: it needs a CPU and a ResNet of depth 50 or more",
        ),
        (AUTO.model_copy(update={"boxes": "given"}), 3.0, 2.2, "exact", None),
    ],
)
def test_the_precision_is_chosen_by_the_speed_of_bfloat16_and_int8(
    deep, monkeypatch, caplog, asked, gain, int8_gain, chosen, message
):
    monkeypatch.setattr(mixed, "bfloat16_gain", lambda *_, **__: gain)
    monkeypatch.setattr(mixed, "int8_gain", lambda *_, **__: int8_gain)
    with caplog.at_level(logging.INFO):
        extractor = Extractor(deep, config=asked)
    assert extractor.config.precision == chosen
    assert caplog.messages == ([] if message is None else [message])


def test_the_gain_is_measured_and_0_where_bfloat16_is_emulated(detector, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(mixed, "has_bfloat16", lambda device: True)
    assert 0 < mixed.bfloat16_gain(detector, CPU, roi_size=7) < 1000
    monkeypatch.setattr(mixed, "has_bfloat16", lambda device: False)
    assert mixed.bfloat16_gain(detector, CPU, roi_size=7) == 0


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


def test_emulated_bfloat16_of_a_gpu_does_not_count(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert not mixed.has_bfloat16(torch.device("cuda", 0))
