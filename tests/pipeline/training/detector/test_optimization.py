"""Tests of a detector's updates: losses, parts, sampling, rates and clipping."""

import copy
import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from a2cap.data.batches.loader import Share
from a2cap.extract.training import trainable
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.gradients import GradientSum
from a2cap.pipeline.training.detector.batches import DetectorDataset, collate
from a2cap.pipeline.training.detector.data import read_detector_data
from a2cap.pipeline.training.detector.optimization import (
    DetectorOptimizer,
    detector_learning_rate,
)
from a2cap.pipeline.training.detector.train import new_detector
from a2cap.pipeline.training.task import Batches

EVERYTHING = {"anchors": 10**6, "anchor_positives": 1.0, "regions": 10**6, "region_positives": 1.0}
"""Settings that sample nothing: all anchors and all regions are used."""


@pytest.fixture(scope="module")
def data(labelled):
    return read_detector_data(labelled.config()).training


@pytest.fixture(scope="module")
def parts_of(labelled, data):
    """Return a function that gives the first batch of an epoch in parts."""

    def parts_of(accumulate=1, **changes):
        config = labelled.config(accumulate=accumulate, **changes)
        meta = new_detector(config, data).meta
        dataset = DetectorDataset(data, flip=True, seed=0)
        share = Share(micro_batches=accumulate)
        batches = Batches(dataset, partial(collate, meta=meta), config, share, workers=0)
        return next(batches.epoch(0, start=0))

    return parts_of


@pytest.fixture
def started(labelled, data):
    """Return a function that gives a random detector and its optimizer."""

    def started(ranks=SINGLE, **changes):
        config = labelled.config(**changes)
        detector = TrainableDetector(
            new_detector(config, data), learns_norms=config.norms == "learnt"
        )
        return detector, DetectorOptimizer(detector, config, steps=100, ranks=ranks)

    return started


def gradients(detector):
    return {
        name: parameter.grad.clone()
        for name, parameter in detector.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.slow
def test_an_update_reports_five_losses_and_their_weighted_sum(started, parts_of):
    _, optimizer = started(attribute_weight=0.25, lr=0.5, warmup=4)
    [update] = optimizer.step(parts_of(), 2)
    assert list(update.means) == list(DetectorOptimizer.names)
    parts = {name: update.means[name] for name in DetectorOptimizer.names[1:]}
    weighted = sum(parts.values()) - 0.75 * parts["attributes"]
    assert update.means["loss"] == pytest.approx(weighted, rel=1e-5)
    assert (update.number, update.amount) == (2, 4)
    assert update.finite
    assert update.scalars == {**update.means, "lr": 0.25}


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_a_batch_in_parts_has_the_gradient_of_the_whole_batch(
    started, parts_of, monkeypatch, accumulate
):
    """3 parts of 4 images have 2, 1 and 1 of them."""
    monkeypatch.setattr(trainable, "_replace_norms", lambda detector: None)
    found = {}
    for parts in (1, accumulate):
        detector, optimizer = started(accumulate=parts, clip_norm=None, proposals=20, **EVERYTHING)
        assert len(parts_of(parts)) == parts
        [update] = optimizer.step(parts_of(parts), 1)
        found[parts] = update, gradients(detector)
    (whole, expected), (divided, sums) = found.values()
    assert divided.means == pytest.approx(whole.means, rel=1e-5)
    assert divided.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)
    assert sums.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(
            sums[name], gradient, rtol=1e-4, atol=float(1e-5 * largest), msg=name
        )


def test_a_rank_without_a_part_adds_no_gradient_and_no_loss(started, monkeypatch):
    """As in a batch with fewer images than ranks."""
    detector, optimizer = started(ranks=Ranks(rank=1, count=2))
    monkeypatch.setattr(Ranks, "sum", lambda self, values: values + (values.ndim == 0))
    monkeypatch.setattr(GradientSum, "overlapped", lambda self: nullcontext())
    monkeypatch.setattr(GradientSum, "wait", lambda self: None)
    [update] = optimizer.step([], 1)
    assert (update.image_ids, update.amount) == ((), 1)
    assert set(update.means.values()) == {0.0}
    assert gradients(detector) == {}


@pytest.mark.slow
def test_sampling_depends_only_on_seed_update_part_and_rank(labelled, started, parts_of):
    def loss(number=1, index=0, rank=0, seed=0):
        detector, _ = started()  # the same network for each seed
        config = labelled.config(seed=seed, regions=4, anchors=8)
        ranks = Ranks(rank=rank, count=1)
        optimizer = DetectorOptimizer(detector, config, steps=100, ranks=ranks)
        [part] = parts_of()
        return optimizer.losses(part, number, index)[1].tolist()

    first = loss()
    torch.manual_seed(5)
    assert loss() == first
    others = [loss(number=2), loss(index=1), loss(rank=1), loss(seed=1)]
    assert all(other != first for other in others)


COSINE = [0.4 * (1 + math.cos(math.pi * share / 8)) / 2 for share in range(1, 9)]


@pytest.mark.parametrize(
    ("warmup", "steps", "rates"),
    [
        (4, 12, [0.1, 0.2, 0.3, 0.4, *COSINE]),
        (0, 8, COSINE),
        (100, 3, [0.004, 0.008, 0.012]),  # a training may be shorter than its warmup
        (2, 2, [0.2, 0.4]),
    ],
)
def test_the_rate_rises_linearly_and_falls_along_half_a_cosine(labelled, warmup, steps, rates):
    config = labelled.config(lr=0.4, warmup=warmup)
    found = [detector_learning_rate(config, number, steps=steps) for number in range(1, steps + 1)]
    assert found == pytest.approx(rates)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_the_optimizer_applies_gradient_rate_and_decay(started, parts_of, optimiser):
    """Only matrices and filters decay."""
    changes = {"lr": 0.01, "warmup": 0, "weight_decay": 0.5, "clip_norm": None}
    detector, optimizer = started(optimiser=optimiser, **changes)
    before = {name: p.detach().clone() for name, p in detector.named_parameters()}
    [update] = optimizer.step(parts_of(), 1)
    for name, parameter in detector.named_parameters():
        gradient, decay = parameter.grad, 0.5 if parameter.ndim > 1 else 0.0
        if optimiser == "sgd":
            expected = before[name] - update.scalars["lr"] * (gradient + decay * before[name])
        else:
            moved = gradient / (gradient.abs() + 1e-8)
            expected = (
                before[name] * (1 - update.scalars["lr"] * decay) - update.scalars["lr"] * moved
            )
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_gradients_are_clipped_together(started, parts_of):
    norms = {}
    for most in (None, 0.5):
        detector, optimizer = started(clip_norm=most)
        [update] = optimizer.step(parts_of(), 1)
        after = torch.stack([gradient.norm() for gradient in gradients(detector).values()]).norm()
        norms[most] = update.gradient_norm, after.item()
    assert norms[None][0] == norms[0.5][0] > 0.5
    assert norms[None][1] == pytest.approx(norms[None][0], rel=1e-4)
    assert norms[0.5][1] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_an_update_that_is_not_finite_changes_no_parameter(started, parts_of, monkeypatch, where):
    detector, optimizer = started()
    optimizer.step(parts_of(), 1)
    before = {name: p.detach().clone() for name, p in detector.named_parameters()}
    states = copy.deepcopy(optimizer.state_dict())
    weight = next(detector.parameters())
    if where == "loss":
        compute = TrainableDetector.losses
        monkeypatch.setattr(
            TrainableDetector, "losses", lambda self, *a, **k: broken(compute(self, *a, **k))
        )
    else:
        weight.register_hook(lambda gradient: gradient * torch.inf)
    [update] = optimizer.step(parts_of(), 2)
    assert not update.finite
    assert math.isfinite(update.means["loss"]) == (where == "gradient")
    for name, parameter in detector.named_parameters():
        assert torch.equal(parameter, before[name]), name
    [after], [kept] = optimizer.state_dict()["optimizers"], states["optimizers"]
    for number, state in after["state"].items():
        assert torch.equal(state["exp_avg"], kept["state"][number]["exp_avg"])


def broken(losses):
    return type(losses)(**{**losses.named(), "boxes": losses.boxes * torch.nan})
