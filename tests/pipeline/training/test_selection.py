"""Tests of the selection of the best epoch and of patience."""

import pytest

from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.selection import select


def selected(figures, **fields):
    """Return the best epoch and the one that ends the training; figures: score and loss of each."""
    lines = [
        {"epoch": number, "step": 10 * number, "CIDEr": score, "validation_loss": loss}
        for number, (score, loss) in enumerate(figures, start=1)
    ]
    config = TrainConfig(**{"schedule": "constant", "epochs": 99, **fields})
    best, end = select(lines, config, score="CIDEr")
    assert best.step == 10 * best.epoch
    return best.epoch, end


@pytest.mark.parametrize(
    ("epochs", "best"),
    [
        ([(0.5, 2.0), (0.4, 1.0)], 1),
        ([(0.5, 2.0), (0.5, 1.0), (0.5, 3.0)], 2),
        ([(0.5, 2.0), (0.5, 2.0)], 2),
        ([(0.0, 2.0), (0.0, 1.0), (0.0, 1.5)], 2),
        ([(0.0, 1.0), (0.1, 2.0), (0.0, 0.5)], 2),
    ],
)
def test_equal_scores_are_decided_by_the_loss_and_then_the_later_epoch(epochs, best):
    assert selected(epochs) == (best, None)


@pytest.mark.parametrize(
    ("scores", "end"),
    [
        ([0.5, 0.4, 0.4, 0.3], 3),
        ([0.5, 0.5, 0.5], 3),  # an equal score is not a better one
        ([0.0] * 9, None),
        ([0.0, 1e-8, 0.0, 0.0], None),  # rounding
        ([0.0, 0.0, 0.0, 0.1, 0.0, 0.0], 6),
    ],
)
def test_epochs_before_the_first_score_do_not_count_against_patience(scores, end):
    assert selected([(score, 1.0) for score in scores], patience=2)[1] == end


@pytest.mark.parametrize(("warmup", "end"), [(1, 3), (30, 5), (35, 5), (40, 6), (99, None)])
def test_patience_starts_after_the_warm_up(warmup, end):
    scores = [(0.5, 1.0), *[(0.4, 1.0)] * 6]
    assert selected(scores, patience=2, schedule="noam", warmup=warmup)[1] == end
    assert selected(scores, patience=2, schedule="constant", warmup=warmup)[1] == 3


def test_a_warm_up_is_of_schedules_that_have_one():
    assert TrainConfig().warmup_updates == 10_000
    assert TrainConfig(schedule="constant").warmup_updates == 0
    assert TrainConfig(schedule="linear", warmup=1).warmup_updates == 0
    assert ScstConfig().warmup_updates == 0
    assert DetectorConfig(warmup=7).warmup_updates == 7


def test_a_training_ends_at_its_last_epoch():
    assert selected([(0.1, 1.0), (0.2, 1.0), (0.3, 1.0)], epochs=2) == (2, 2)
