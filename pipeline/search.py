"""Bayesian search of settings on Optuna; each trial is an ordinary run.

A search keeps no file of its own: its sampler is seeded and is told the validation scores of the
results that exist, so that the same command proposes the same settings again, and trains those that
have no result yet.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error, ConfigError
from a2cap.model.errors import ModelError
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import TRAIN_SCST
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.sweep import RANGE, WHOLE, described, grid
from a2cap.pipeline.training.learning_curve import LearningCurve
from a2cap.pipeline.training.summary import TrainingSummary

_LOGARITHMIC = 10  # ratio of the ends
_RANDOM_TRIALS = 5
"""Trials before the sampler models the scores, and before the pruner compares."""
_PHASE = 10**9  # epochs of self-critical training are counted from here, after all others
_MEASURES = ("select", "validation_beam_size", "max_validation_images")
"""Fields that change what the validation score is."""


class _Pruned(Exception):
    """A training that is given up, with its last epoch."""


@dataclass(frozen=True)
class Choice:
    """The overrides of a field: those of a list or of the ends of a range, or a fixed one."""

    field: str
    overrides: tuple[str, ...]
    ends: tuple[str, str] | None = None

    @classmethod
    def read(cls, override: str) -> "Choice":
        """Read `field=LOW..HIGH`, `field=A,B` or `field=A`; raise ConfigError for a wrong range."""
        field, _, text = (part.strip() for part in override.partition("="))
        ends = RANGE.fullmatch(text)
        if ends is None:
            return cls(field, tuple(point.overrides[0] for point in grid([override])))
        low, high = ends.groups()
        if not float(low) < float(high) < math.inf:
            raise ConfigError(
                f"{override!r} is not a range to search; write LOW..HIGH, the lower end first"
            )
        return cls(field, (f"{field}={low}", f"{field}={high}"), (low, high))

    @property
    def is_searched(self) -> bool:
        """Return True for several values."""
        return len(self.overrides) > 1

    @property
    def is_logarithmic(self) -> bool:
        """Return True for a range of positive numbers of which the last is 10 times the first."""
        if self.ends is None:
            return False
        low, high = map(float, self.ends)
        return low > 0 and high / low >= _LOGARITHMIC

    def __str__(self) -> str:
        if self.ends is not None:
            scale = ", logarithmic" if self.is_logarithmic else ""
            return f"{self.field}: {' to '.join(self.ends)}{scale}"
        return f"{self.field}: {', '.join(o.partition('=')[2] for o in self.overrides)}"

    def suggest(self, trial: Any) -> str:
        """Return the override of an Optuna trial."""
        if not self.is_searched:
            return self.overrides[0]
        if self.ends is None:
            return str(trial.suggest_categorical(self.field, self.overrides))
        if all(map(WHOLE.fullmatch, self.ends)):
            first, last = map(int, self.ends)
            number = trial.suggest_int(self.field, first, last, log=self.is_logarithmic)
            return f"{self.field}={number}"
        low, high = map(float, self.ends)
        value = trial.suggest_float(self.field, low, high, log=self.is_logarithmic)
        text = f"{value:.4g}"
        return f"{self.field}={text if low <= float(text) <= high else repr(value)}"


def search_space(overrides: Sequence[str]) -> list[Choice]:
    """Return the choice of each override.

    Raises ConfigError for a wrong range, a field that is given twice, several seeds, several ways
    to measure a captioner, and without a field to search.
    """
    choices = list(map(Choice.read, overrides))
    searched = [choice.field for choice in choices if choice.is_searched]
    if not searched:
        raise ConfigError(
            "nothing to search: no field has several values; write a range or a list, as with "
            "--set train.lr=1e-4..1e-2 --set model.alignment.fusion=gate,max"
        )
    fields = [choice.field for choice in choices]
    if twice := [field for field in searched if fields.count(field) > 1]:
        raise ConfigError(f"{twice[0]} is given twice; name the values to search once")
    if measures := [field for field in searched if field.rpartition(".")[2] in _MEASURES]:
        raise ConfigError(
            f"{measures[0]} has several values, but scores of different measures cannot be "
            "compared; name one"
        )
    if seeds := [field for field in searched if field.rpartition(".")[2] == "seed"]:
        raise ConfigError(
            f"{seeds[0]} has several values, but a search among seeds chooses luck; name one, and "
            'run the best settings with more seeds by "a2 sweep" without --trials'
        )
    return choices


def corners(choices: Sequence[Choice]) -> list[list[str]]:
    """Return overrides in which each value of a list and each end of a range occurs."""
    return [
        [override if other is choice else other.overrides[0] for other in choices]
        for choice in choices
        if choice.is_searched
        for override in choice.overrides
    ]


@dataclass(frozen=True)
class Trial:
    """One trial; score: of its best epoch by validation, None if it was pruned or failed.

    outcome: done, or why it was pruned or failed. training: the folder of the trained captioner.
    """

    setting: str
    outcome: str
    score: float | None = None
    training: Path | None = None


class Search:
    """A study of Optuna (TPE, Bergstra et al. 2011) that maximises the validation score.

    A training whose score so far is below the median of the trials before it at the same epoch is
    pruned. Raises ConfigError where Optuna is not installed.
    """

    def __init__(self, choices: Sequence[Choice]) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ConfigError(
                'optuna is not installed: --trials needs it; run pip install "a2cap[search]"'
            ) from error

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.choices = choices
        self._states = optuna.trial.TrialState
        self._study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=_RANDOM_TRIALS),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_RANDOM_TRIALS),
        )

    def run(
        self,
        opened: Callable[[Sequence[str]], AbstractContextManager[Experiment]],
        work: Callable[[Experiment, str], object],
    ) -> Trial:
        """Run the next trial.

        opened: opens the experiment with these overrides; work: runs its stages, and is told the
        settings that are searched.
        """
        asked = self._study.ask()
        overrides = [choice.suggest(asked) for choice in self.choices]
        setting = described(
            [o for o, choice in zip(overrides, self.choices, strict=True) if choice.is_searched]
        )
        try:
            with opened(overrides) as experiment:
                watch = experiment.watch = _Watch(asked, experiment.config)
                work(experiment, setting)
                for stage in experiment.training:
                    training = experiment.result(stage, needed_by="the search").directory
                    # a result of an earlier search was not watched
                    watch(training, may_prune=False)
            summary = TrainingSummary.read(training)
            if summary is None:
                raise A2Error(f"no score of training {str(training)!r}; delete it and search again")
        except _Pruned as pruned:
            self._study.tell(asked, state=self._states.PRUNED)
            return Trial(setting, f"pruned {pruned}")
        except (A2Error, ModelError) as error:
            self._study.tell(asked, state=self._states.FAIL)
            return Trial(setting, f"failed: {error}")
        self._study.tell(asked, summary.score)
        return Trial(setting, "done", summary.score, training)


class _Watch:
    """Report of the epochs of a trial to Optuna, called with the folder of a training."""

    def __init__(self, trial: Any, config: Config) -> None:
        self._trial = trial
        self._config = config
        self._reported: set[int] = set()

    def __call__(self, folder: Path, *, may_prune: bool = True) -> None:
        """Report new epochs in order; raise _Pruned after one below the median but the last."""
        curve = LearningCurve.read(folder)
        if curve is None:
            return
        is_refined = folder.parent.name == TRAIN_SCST
        epochs = (self._config.scst if is_refined else self._config.train).epochs
        for line in curve.epochs:
            epoch, score = int(line["epoch"]), line.get(curve.selected_by)
            step = epoch + _PHASE * is_refined
            if not epoch or score is None or step in self._reported:
                continue
            self._reported.add(step)
            self._trial.report(score, step)
            if may_prune and epoch < epochs and self._trial.should_prune():
                raise _Pruned(f"after epoch {epoch}: validation {curve.selected_by} {score:.3f}")
