"""Tests of the warnings of a captioner's validation."""

import math
from types import SimpleNamespace

import pytest
import torch

from a2cap.data.errors import InputError
from a2cap.pipeline.training import loop
from a2cap.pipeline.training.captioner import self_critical
from a2cap.pipeline.training.captioner.caption_validation import CaptionValidation, start_score
from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.learning_curve import LearningCurve
from tests.experiments import settings
from tests.pipeline.training.runs import metrics
from tests.quick import some_quick


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (
            0.99,
            "mean mask is 0.9900: masks above 0.98 hardly change attention; "
            "lower model.alignment.penalty_weight",
        ),
        (
            0.4,
            "mean mask is 0.4000: masks below 0.5 hide most of every image; "
            "raise model.alignment.penalty_weight",
        ),
        (0.7, None),
        (math.nan, None),
    ],
)
@pytest.mark.parametrize("blind", [False, True])
def test_idle_masks_log_a_warning_unless_the_captioner_is_a_blind_control(
    caplog, mean, words, blind
):
    captioner = SimpleNamespace(config=SimpleNamespace(blind=blind))
    validation = SimpleNamespace(start=None, captioner=captioner)
    CaptionValidation.warn(validation, {"mean_mask": mean})
    assert caplog.messages == ([] if words is None or blind else [words])


def test_a_score_below_that_of_the_start_logs_a_warning(caplog):
    captioner = SimpleNamespace(config=SimpleNamespace(blind=False))
    named = (("scst", ScstConfig(epochs=1)), ("train", TrainConfig(epochs=1)))
    for section, config in named:
        names = {"selected_by": "CIDEr", "captioner": captioner, "config": config}
        refined = SimpleNamespace(start=0.5, **names)
        for score in (0.5, 0.4):
            CaptionValidation.warn(refined, {"CIDEr": score})
        assert caplog.messages.pop() == (
            f"validation CIDEr is 0.400, below 0.500 at the start; lower {section}.lr if it stays "
            "there"
        )
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("others", "start", "line"),
    [
        ({}, None, "loss 1.000, validation CIDEr 0.500 (best), 1,234 tokens/s"),
        (
            {"reward": 0.25, "baseline": 0.125},
            0.75,
            "loss 1.000, reward 0.250, baseline 0.125, validation CIDEr 0.500 (best), "
            "started at 0.750, 1,234 tokens/s",
        ),
    ],
)
def test_the_line_of_an_epoch_has_the_rewards_and_the_score_before(others, start, line):
    validation = SimpleNamespace(selected_by="CIDEr", start=start)
    task = SimpleNamespace(unit="tokens", validation=validation)
    measured = {"loss": 1.0, **others, "CIDEr": 0.5, "tokens_per_second": 1234}
    assert loop._format_epoch(measured, task, better=True) == line


@pytest.mark.parametrize(("beams", "is_same"), [(2, True), (3, False)])
def test_self_critical_training_starts_at_the_best_score_of_the_same_validation(
    experiment, beams, is_same
):
    model = experiment.directory("train-xe")
    scst = ScstConfig(epochs=1, validation_beam_size=beams)
    best = max(line["CIDEr"] for line in metrics(model))
    assert self_critical.best_score(model, scst) == (best if is_same else None)


def test_the_score_of_a_start_is_epoch_0_of_the_training_that_goes_on_from_it(copy):
    start = copy.directory("train-xe")
    best = max(line["CIDEr"] for line in metrics(start))
    chosen = settings(f"train.start={start}", "train.lr=0.0001")

    def trained(epochs):
        before = {*copy.artifacts.glob("train-xe/*")}
        copy.a2("train", *chosen, *settings(f"train.epochs={epochs}"), code=0)
        [folder] = {*copy.artifacts.glob("train-xe/*")} - before
        return folder

    folder = trained(1)
    assert LearningCurve.read(folder).epochs[0] == {"epoch": 0, "step": 0, "CIDEr": best}
    # it is none of the epochs of a longer training, which goes on with the first one
    longer = trained(2)
    assert metrics(longer)[0] == metrics(folder)[0]  # the same speed
    assert [line["epoch"] for line in LearningCurve.read(longer).epochs] == [0, 1, 2]


def test_the_score_of_a_start_takes_no_random_number(monkeypatch):
    def figures(validation):
        return {"CIDEr": float(torch.rand(1) >= 0)}

    monkeypatch.setattr(CaptionValidation, "figures", figures)
    captioner, config = torch.nn.Linear(1, 1), TrainConfig(epochs=1)
    validation = CaptionValidation(captioner, SimpleNamespace(validation=["a"]), config, None, None)
    before = torch.get_rng_state()
    assert start_score(validation) == 1.0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("select", some_quick(("CIDEr", "BLEU-4", "loss"), "loss"))
def test_the_selected_figure_is_that_of_the_captions_or_of_the_loss(train, tmp_path, select):
    chosen = ("train.epochs=2", "train.validation_beam_size=1", f"train.select={select}")
    [*_, last] = lines = metrics(train(tmp_path / "model", *chosen))
    assert last["CIDEr"] >= 0
    if select == "loss":
        assert last["likelihood"] == pytest.approx(math.exp(-last["validation_loss"]))
        assert lines[0]["likelihood"] < last["likelihood"] < 1
    extra = {"CIDEr": set(), "BLEU-4": {"BLEU-4"}, "loss": {"likelihood"}}
    assert {"BLEU-4", "likelihood"} & last.keys() == extra[select]
    assert last["validation_loss"] > 0


def test_meteor_of_unicode_words_is_rejected_before_training():
    data = SimpleNamespace(vocabulary=SimpleNamespace(tokenizer="unicode"), validation=["1", "2"])
    with pytest.raises(InputError) as raised:
        CaptionValidation(None, data, TrainConfig(select="METEOR"), None, None)
    assert str(raised.value) == (
        "select is 'METEOR', which reads English alone, and the captions are Unicode words; set "
        "train.select and scst.select to CIDEr, BLEU-4 or loss"
    )


def test_cider_of_one_image_logs_a_warning_before_training(caplog):
    data = SimpleNamespace(validation=["7", "8"])
    for count in (2, 1):
        CaptionValidation(None, data, TrainConfig(max_validation_images=count), None, None)
    assert caplog.messages == [
        "only one image is validated, '7': its CIDEr is 0 whatever the caption, so the validation "
        "loss selects and patience never ends the training; validate on more, or set train.select "
        "and scst.select to loss"
    ]
