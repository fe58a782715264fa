"""Learning curves: which epoch is the best, and what is said of it."""

import json

import pytest

from a2cap.pipeline.training.learning_curve import LearningCurve


def curve(*scores, start=None):
    epochs = [{"epoch": n, "step": n, "CIDEr": score} for n, score in enumerate(scores, 1)]
    first = [] if start is None else [{"epoch": 0, "step": 0, "CIDEr": start}]
    return LearningCurve([*first, *epochs])


@pytest.mark.parametrize(
    ("curve", "summary", "sentences"),
    [
        (
            curve(0.5, 0.25, 0.25),
            "best at epoch 1 of 3",
            "Validation CIDEr is 0.500 after epoch 1.",
        ),
        (
            curve(0.25, 0.5),
            "best at epoch 2 of 2",
            "Validation CIDEr is 0.500 after epoch 2. "
            "It was best at the end: more epochs may help.",
        ),
        (
            curve(0.25, 0.125, start=0.5),
            "best at epoch 1 of 2, 0.250 from 0.500",
            "Validation CIDEr is 0.250 after epoch 1, 0.500 before the training. "
            "The training did not improve it: lower the learning rate.",
        ),
        (LearningCurve([{"epoch": 1, "step": 1, "loss": 2.0}]), "not validated", ""),
        (
            LearningCurve([{"epoch": 1, "step": 1, "mAP": 0.5}]),
            "best at epoch 1 of 1",
            "Validation mAP is 0.500 after epoch 1.",
        ),
    ],
)
def test_the_best_epoch_is_told_as_a_sentence(curve, summary, sentences):
    assert (curve.summary, curve.sentences) == (summary, sentences)


def test_equal_scores_are_decided_by_the_validation_loss_as_in_training():
    lines = [
        {"epoch": n, "step": n, "CIDEr": 0.5, "validation_loss": loss}
        for n, loss in enumerate((2.0, 1.0, 1.5), 1)
    ]
    assert LearningCurve(lines).best == 2


def test_what_selects_is_shown_before_cider(tmp_path):
    line = {"epoch": 1, "step": 2, "loss": 3.0, "CIDEr": 0.5, "likelihood": 0.25, "lr": 0.1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    curve = LearningCurve.read(tmp_path)
    assert curve.selected_by == "likelihood"
    assert curve.figures == ["loss", "likelihood", "CIDEr", "lr"]
    assert curve.lines == [
        "epoch  loss  likelihood  CIDEr   lr",
        "   1*     3        0.25    0.5  0.1",
    ]


def test_what_is_no_finite_number_is_left_out(tmp_path):
    lines = (
        '{"epoch": 1, "step": 2, "loss": NaN, "CIDEr": 0.5}',
        '{"epoch": 2, "step": 4, "loss": "low", "CIDEr": 0.25, "lr": null}',
        '{"epoch": "three", "step": 6, "CIDEr": 0.75}',
    )
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    curve = LearningCurve.read(tmp_path)
    assert curve.epochs == [
        {"epoch": 1, "step": 2, "CIDEr": 0.5},
        {"epoch": 2, "step": 4, "CIDEr": 0.25},
    ]
    assert curve.summary == "best at epoch 1 of 2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"epoch": 0, "step": 0, "CIDEr": 1}', None])
def test_a_training_without_a_finished_epoch_has_no_curve(tmp_path, text):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    assert LearningCurve.read(tmp_path) is None
