"""Tests of the training of a detector: results, initial weights, errors, and several ranks."""

import json
import math
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torchvision.models import resnet18

from a2cap.data.batches.loader import Batches, Share
from a2cap.data.scenes.generate import write_scenes
from a2cap.extract.detector.detections import detect_objects
from a2cap.extract.image import read_image
from a2cap.extract.training import trainable
from a2cap.extract.training.trainable import TrainableDetector
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.gradients import GradientSum
from a2cap.pipeline.training.checkpoints import Checkpoints
from a2cap.pipeline.training.detector import train as detector_training
from a2cap.pipeline.training.detector.labelled_images import read_detector_data
from a2cap.pipeline.training.detector.train import (
    DetectorDataset,
    DetectorUpdater,
    collate,
    new_detector,
)
from a2cap.pipeline.training.detector.validation import DetectorValidation, detector_figures
from a2cap.pipeline.training.training_parts import cosine_rate
from tests.pipeline.training.runs import DetectorTraining, metrics, outcome, without_speed

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

EVERYTHING = {"anchors": 10**6, "anchor_positives": 1.0, "regions": 10**6, "region_positives": 1.0}
"""Settings that sample nothing: all anchors and all regions are used."""


@pytest.fixture
def frozen_norms(monkeypatch):
    """Freeze normalisations although the detector is random."""
    monkeypatch.setattr(trainable, "_replace_norms", lambda detector: None)


def figures_of(directory):
    return json.loads((directory / "figures.json").read_text())


def scored(monkeypatch, *scores):
    """Make validation return these AP50s, one per epoch."""
    left = list(scores)
    monkeypatch.setattr(
        DetectorValidation, "figures", lambda self: {"AP": 0.0, "AP50": left.pop(0), "AP75": 0.0}
    )


@pytest.mark.slow
def test_the_directory_contains_weights_figures_and_names(uninterrupted_detector, labelled):
    assert {path.name for path in uninterrupted_detector.iterdir()} == {
        "detector.safetensors",
        "figures.json",
        "names.json",
        "checkpoints",
        "metrics.jsonl",
        "training.json",
        "events.jsonl",
        "tensorboard",
    }
    data = read_detector_data(labelled.config()).training
    names = json.loads((uninterrupted_detector / "names.json").read_text())
    assert names == {"classes": list(data.classes), "attributes": list(data.attributes)}


@pytest.mark.slow
def test_the_weights_need_no_other_file_to_extract(uninterrupted_detector, labelled):
    detector = load_detector(uninterrupted_detector / "detector.safetensors")
    assert detector.meta.origin == "trained by a2 detector train"
    assert detector.meta.scale == (64, 64)
    config = labelled.config()
    data = read_detector_data(config)
    assert detector.architecture == new_detector(config, data.training).architecture
    detections = detect_objects(
        detector, [read_image(data.validation.images[0].file)], proposals=5, roi_size=7
    )
    assert len(detections) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 2, "flip": False, "attribute_head": False},
        {"last_stage": "dilated", "region_pooling": "maximum", "depth": 50, "batch_size": 6},
    ],
    ids=" ".join,
)
def test_other_settings_train_too(train_detector, tmp_path, changes):
    result = train_detector(tmp_path / "other", epochs=1, max_validation_images=2, **changes)
    assert math.isfinite(metrics(result)[0]["loss"])
    detector = load_detector(result / "detector.safetensors")
    assert detector.architecture.depth == changes.get("depth", 18)
    has_attributes = detector.architecture.attributes > 0
    assert has_attributes == changes.get("attribute_head", True)


@pytest.mark.slow
def test_figures_are_measured_with_the_stored_weights(train_detector, labelled, tmp_path):
    result = train_detector(tmp_path / "half", epochs=1, dtype="float16")
    stored = load_file(result / "detector.safetensors")
    halves = {name for name, tensor in stored.items() if tensor.dtype == torch.float16}
    assert halves == {name for name, tensor in stored.items() if tensor.ndim > 1}
    config = labelled.config()
    detector = load_detector(result / "detector.safetensors")
    figures = detector_figures(detector, read_detector_data(config).validation, config)
    assert json.loads(json.dumps(figures)) == figures_of(result)


@pytest.mark.slow
def test_figures_describe_all_validation_images(uninterrupted_detector, labelled):
    figures = figures_of(uninterrupted_detector)
    assert (figures["images"], figures["proposals"], figures["roi_size"]) == (6, 20, 7)
    assert figures["proposal_recall"].keys() == {"10", "36", "100"}
    seen = {
        int(class_id)
        for image in read_detector_data(labelled.config()).validation.images
        for class_id in image.class_ids
    }
    assert len(figures["AP50_of_class"]) == len(seen)
    best = max(metrics(uninterrupted_detector), key=lambda line: line["AP50"])
    assert [figures[name] for name in ("AP", "AP50", "AP75")] == pytest.approx(
        [best[name] for name in ("AP", "AP50", "AP75")]
    )


@pytest.mark.slow
def test_finding_no_object_logs_a_warning(train_detector, tmp_path, monkeypatch, caplog):
    scored(monkeypatch, 0.0, 0.1)
    train_detector(tmp_path / "blind")
    warning = (
        "no labelled object is found yet: AP50 is 0; if that persists, check "
        "detector.labels and detector.anchor_sizes, or lower detector.lr"
    )
    assert [message for message in caplog.messages if "AP50 is 0" in message] == [warning]


@pytest.mark.slow
def test_a_few_images_are_overfitted(train_detector, tmp_path):
    write_scenes(tmp_path / "few", count=4, seed=5, side=96)
    copied = tmp_path / "copies of them"
    write_scenes(copied, count=4, seed=5, side=96)
    result = train_detector(
        tmp_path / "by heart",
        images=str(tmp_path / "few" / "images"),
        labels=str(tmp_path / "few" / "instances.json"),
        validation_images=str(copied / "images"),
        validation_labels=str(copied / "instances.json"),
        width=16,
        anchor_sizes=[14, 22, 34, 50],
        attribute_head=False,
        min_side=96,
        max_side=96,
        flip=False,
        epochs=50,
        patience=50,
        checkpoint_every=1000,
        batch_size=1,
        warmup=10,
        validation_proposals=60,
    )
    assert figures_of(result)["AP50"] > 0.85
    assert metrics(result)[-1]["loss"] < 0.25 * metrics(result)[0]["loss"]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """Save the state dict of a torchvision classifier."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("start") / "resnet18.pth"
    torch.save(resnet18().state_dict(), path)
    return path


@pytest.mark.slow
def test_frozen_norms_keep_their_initial_values(train_detector, labelled, resnet, tmp_path):
    changes = {"start": str(resnet), "norms": "frozen", "width": 64}
    data = read_detector_data(labelled.config()).training
    before = new_detector(labelled.config(**changes), data).state_dict()
    result = train_detector(tmp_path / "tuned", epochs=1, max_validation_images=1, **changes)
    trained = load_detector(result / "detector.safetensors").state_dict()
    moved = {name for name, tensor in trained.items() if not torch.equal(tensor, before[name])}
    assert not {name for name in moved if ".norm." in name}
    assert "backbone.res3.0.conv1.weight" in moved


def test_training_starts_from_a_detector_and_keeps_the_heads_that_fit(labelled, tmp_path):
    weights, data = tmp_path / "a.safetensors", read_detector_data(labelled.config()).training
    save_detector(new_detector(labelled.config(seed=1), data), weights)
    before = load_file(weights)
    same = new_detector(labelled.config(start=str(weights)), data).state_dict()
    assert all(torch.equal(same[name], before[name]) for name in before)
    other = new_detector(
        labelled.config(start=str(weights), anchor_sizes=[16, 32], seed=3), data
    ).state_dict()
    kept = {name for name in before if torch.equal(other[name], before[name])}
    assert before.keys() - kept == {
        f"proposal_generator.rpn_head.{head}.{part}"
        for head in ("objectness_logits", "anchor_deltas")
        for part in ("weight", "bias")
    }


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}])
def test_two_ranks_train_as_one_if_nothing_is_sampled(
    train_detector, together, tmp_path, frozen_norms, changes
):
    settings = {"proposals": 20, "batch_size": 5, "lr": 1e-4, **EVERYTHING, **changes}
    alone = train_detector(tmp_path / "alone", **settings)
    joint = tmp_path / "together"
    ended = together(2, lambda _: outcome(lambda: train_detector(joint, **settings)))
    assert ended == [None, None]
    assert {path.name for path in joint.iterdir()} == {path.name for path in alone.iterdir()}
    for line, its in zip(without_speed(joint), without_speed(alone), strict=True):
        assert line == pytest.approx(its, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_all_ranks_end_with_the_same_network(labelled, together, tmp_path):
    """Normalisations learn from the images of each rank, and are averaged."""

    def train_and_show(ranks):
        shown = []
        made = detector_training.TrainableDetector

        def remember(*arguments, **options):
            shown.append(made(*arguments, **options))
            return shown[0]

        detector_training.TrainableDetector = remember
        DetectorTraining(labelled)(tmp_path / "together", epochs=1)
        return {name: tensor.clone() for name, tensor in shown[0].state_dict().items()}

    (tmp_path / "together").mkdir()
    leading, other = together(2, train_and_show)
    assert leading.keys() == other.keys()
    learnt = Checkpoints(tmp_path / "together" / "checkpoints").latest().tensors
    for name, tensor in other.items():
        assert torch.equal(tensor, learnt[name]), name


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
        batches = Batches(
            dataset, partial(collate, meta=meta), config.batch_size, seed=0, share=share
        )
        return next(batches.epoch(0))

    return parts_of


@pytest.fixture
def started(labelled, data):
    """Return a function that gives a random detector and its updater."""

    def started(ranks=SINGLE, **changes):
        config = labelled.config(**changes)
        detector = TrainableDetector(
            new_detector(config, data), learns_norms=config.norms == "learnt"
        )
        return detector, DetectorUpdater(detector, config, steps=100, ranks=ranks)

    return started


def gradients(detector):
    return {
        name: parameter.grad.clone()
        for name, parameter in detector.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.slow
def test_an_update_reports_five_losses_and_their_weighted_sum(started, parts_of):
    _, updater = started(attribute_weight=0.25, lr=0.5, warmup=4)
    [update] = updater.step(parts_of(), 2)
    assert list(update.means) == list(DetectorUpdater.names)
    parts = {name: update.means[name] for name in DetectorUpdater.names[1:]}
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
    made = {}
    for parts in (1, accumulate):
        detector, updater = started(accumulate=parts, clip_norm=None, proposals=20, **EVERYTHING)
        assert len(parts_of(parts)) == parts
        [update] = updater.step(parts_of(parts), 1)
        made[parts] = update, gradients(detector)
    (whole, expected), (divided, sums) = made.values()
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
    detector, updater = started(ranks=Ranks(rank=1, count=2))
    monkeypatch.setattr(Ranks, "sum", lambda self, values: values + (values.ndim == 0))
    monkeypatch.setattr(GradientSum, "overlapped", lambda self, parts: parts)
    monkeypatch.setattr(GradientSum, "wait", lambda self: None)
    [update] = updater.step([], 1)
    assert (update.image_ids, update.amount) == ((), 1)
    assert set(update.means.values()) == {0.0}
    assert gradients(detector) == {}


@pytest.mark.slow
def test_sampling_depends_only_on_seed_update_part_and_rank(labelled, started, parts_of):
    def loss(number=1, index=0, rank=0, seed=0):
        detector, _ = started()  # the same network for each seed
        config = labelled.config(seed=seed, regions=4, anchors=8)
        ranks = Ranks(rank=rank, count=1)
        updater = DetectorUpdater(detector, config, steps=100, ranks=ranks)
        [part] = parts_of()
        return updater.losses(part, number, index)[1].tolist()

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
    shown = [
        cosine_rate(config.lr, number, warmup=config.warmup, steps=steps)
        for number in range(1, steps + 1)
    ]
    assert shown == pytest.approx(rates)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_the_optimizer_applies_gradient_rate_and_decay(started, parts_of, optimiser):
    """Only matrices and filters decay."""
    changes = {"lr": 0.01, "warmup": 0, "weight_decay": 0.5, "clip_norm": None}
    detector, updater = started(optimiser=optimiser, **changes)
    before = {name: p.detach().clone() for name, p in detector.named_parameters()}
    [update] = updater.step(parts_of(), 1)
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
