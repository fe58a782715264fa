"""Bayesian search of settings: its space, its proposals, pruned and failed trials."""

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from a2cap.data.errors import ConfigError, InputError
from a2cap.pipeline import search
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.runs import read_runs
from a2cap.pipeline.search import Choice, Search, search_space
from a2cap.pipeline.training.summary import TrainingSummary
from tests.data.messages import message_of
from tests.experiments import a2, settings


@dataclass
class Training:
    """Stands in for an experiment whose one training is in `folder`."""

    folder: object
    training = ("train-xe",)
    watch = None
    config = load_config(None, ["train.epochs=3"])

    def result(self, name, *, needed_by):
        self.directory = self.folder
        return self

    def train(self, scores):
        """Write the epochs one after the other, as a training with these validation scores."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for epoch, score in enumerate(scores, 1):
            lines.append(json.dumps({"epoch": epoch, "step": epoch, "CIDEr": score}))
            (self.folder / "metrics.jsonl").write_text("\n".join(lines))
            self.watch(self.folder)
        best = max(scores)
        TrainingSummary(3, 3, 3, None, 1, "CIDEr", best, 1.0, 1.0, 0).write(self.folder)


def searched(folder, trials, curve, overrides=("train.lr=0..1.0",)):
    """Run trials whose validation scores `curve` returns for the overrides."""
    study = Search(search_space(overrides))

    @contextmanager
    def opened(overrides):
        yield Training(folder / "-".join(overrides) / "train-xe" / "key")

    def work(experiment, setting):
        experiment.train(curve(setting))

    return [study.run(opened, work) for _ in range(trials)]


def learning_rate(setting):
    return float(setting.removeprefix("lr "))


def test_a_choice_is_a_list_or_a_range_of_whole_or_real_numbers():
    choices = search_space(
        [
            "model.width=64",
            "train.lr=1e-4..1e-2",
            "model.dropout=0..0.5",
            "train.warmup=1..200",
            "scst.epochs=1..3",
            "model.alignment.fusion=gate, max",
        ]
    )
    assert [str(choice) for choice in choices if choice.is_searched] == [
        "train.lr: 1e-4 to 1e-2, logarithmic",
        "model.dropout: 0 to 0.5",
        "train.warmup: 1 to 200, logarithmic",
        "scst.epochs: 1 to 3",
        "model.alignment.fusion: gate, max",
    ]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["train.lr=1e-2..1e-4"],
            "'train.lr=1e-2..1e-4' is not a range to search; write LOW..HIGH, the lower end first",
        ),
        (
            ["train.lr=1..1e999"],
            "'train.lr=1..1e999' is not a range to search; write LOW..HIGH, the lower end first",
        ),
        (
            ["train.lr=0.1,0.5", "train.lr=0.1..2"],
            "train.lr is given twice; name the values to search once",
        ),
        (
            ["train.lr=0.1,0.5", "train.select=CIDEr,loss"],
            "train.select has several values, but scores of different measures cannot be compared; "
            "name one",
        ),
        (
            ["train.lr=0.5"],
            "nothing to search: no field has several values; write a range or a list, as with "
            "--set train.lr=1e-4..1e-2 --set model.alignment.fusion=gate,max",
        ),
        (
            ["train.lr=0.5,1", "train.seed=0..4"],
            "train.seed has several values, but a search among seeds chooses luck; name one, and "
            'run the best settings with more seeds by "a2 sweep" without --trials',
        ),
    ],
)
def test_a_space_that_cannot_be_searched_is_rejected(overrides, problem):
    assert message_of(search_space, overrides, error=ConfigError) == problem


@pytest.mark.parametrize("override", ["train.lr=-1..1", "model.alignment.fusion=gate,gates"])
def test_a_wrong_end_or_value_is_an_error_before_anything_runs(override):
    answer = a2("sweep", *settings(override), "--trials", "3", code=2)
    assert answer.stderr.count(f"{override.partition('=')[0]}: ") == 1


def test_a_dry_run_prints_the_space():
    answer = a2("sweep", *settings("train.lr=0.01..1", "train.seed=3"), "--trials", 3, "--dry-run")
    assert answer.stdout == "search train.lr: 0.01 to 1, logarithmic\n"


def test_values_are_within_their_ranges():
    class Ends:
        """Stands in for a trial of Optuna that proposes the upper ends."""

        def suggest_int(self, name, low, high, *, log):
            return high

        def suggest_float(self, name, low, high, *, log):
            return high

    for override in ("train.warmup=1..200", "train.lr=1e-4..0.0123456", "train.lr=0.5"):
        choice = Choice.read(override)
        assert choice.suggest(Ends()).partition("=")[2] in ("200", "0.0123456", "0.5")


def test_a_search_nears_the_maximum_and_proposes_the_same_again(tmp_path):
    def curve(setting):
        return [0, 0, 1 - (learning_rate(setting) - 0.3) ** 2]  # the last epoch is not pruned

    trials = searched(tmp_path / "first", 25, curve)
    best = max(trials, key=lambda trial: trial.score)
    assert abs(learning_rate(best.setting) - 0.3) < 0.02
    assert best.training.parent.name == "train-xe"
    again = searched(tmp_path / "again", 30, curve)
    assert [trial.setting for trial in again[:25]] == [trial.setting for trial in trials]


def test_a_training_below_the_median_of_five_is_pruned_and_the_best_one_is_not(tmp_path):
    done = []

    def curve(setting):
        done.append(setting)
        good = len(done) % 6
        return [0.1 * good, 0.2 * good, 0.3 * good]

    trials = searched(tmp_path, 11, curve)
    assert [trial.outcome for trial in trials] == [
        *["done"] * 5,
        *["pruned after epoch 1: validation CIDEr 0.000"] * 1,
        *["pruned after epoch 1: validation CIDEr 0.100"] * 1,
        *["pruned after epoch 1: validation CIDEr 0.200"] * 1,
        *["done"] * 3,
    ]
    assert all((trial.score is None) == (trial.training is None) for trial in trials)


def test_a_failed_trial_is_told_and_the_search_goes_on(tmp_path):
    def curve(setting):
        if learning_rate(setting) > 0.6:
            raise InputError("the loss is not finite; lower the rate")
        return [learning_rate(setting)]

    trials = searched(tmp_path, 8, curve)
    failed = [trial for trial in trials if trial.score is None]
    assert 0 < len(failed) < 8
    assert {trial.outcome for trial in failed} == {"failed: the loss is not finite; lower the rate"}


def test_without_optuna_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert message_of(Search, [], error=ConfigError) == (
        'optuna is not installed: --trials needs it; run pip install "a2cap[search]"'
    )


@pytest.mark.parametrize("option", [("--ensemble",), ("--table", __file__)])
def test_a_search_has_no_table_and_no_ensemble(option):
    answer = a2("sweep", "--trials", "2", *option, code=2)
    assert answer.stderr.splitlines()[-1] == (
        "Error: --trials searches; leave --table and --ensemble out"
    )


@pytest.mark.slow
def test_trials_are_runs_that_the_same_command_keeps(copy, without_meteor, monkeypatch):
    monkeypatch.setattr(search, "_RANDOM_TRIALS", 1)
    fields = settings(
        "train.epochs=2", "train.select=loss", "train.lr=1e-9,0.5", "evaluate.attention=none"
    )
    before = copy.finished()
    answer = copy.a2("sweep", *fields, "--trials", 4, code=0)
    lines = answer.stdout.splitlines()
    assert lines[0] == "search train.lr: 1e-9, 0.5"
    table = lines[lines.index("validation  setting") + 1 :]
    assert table[0].endswith("  lr 0.5")
    assert "–           lr 1e-9: pruned after epoch 1" in table
    assert len(table) == 5  # a row for each trial, also of equal settings, and the best
    assert table[-1].startswith("best: ")
    after = copy.finished()
    assert len(after) > len(before)
    assert copy.a2("sweep", *fields, "--trials", 4).stdout.splitlines()[-len(table) :] == table
    assert copy.finished() == after
    states = {
        run.fields["train.lr"]: run.state
        for run in read_runs(copy.artifacts)
        if run.fields["train.select"] == "loss"
    }
    assert states == {0.5: "done", 1e-9: "unfinished"}
