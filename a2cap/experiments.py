"""Experiments of Python programs: trainings and evaluations with typed results."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from a2cap.captioner import Captioner, load
from a2cap.data.errors import ConfigError
from a2cap.data.files.sealed_folder import SkippedItem, read_output
from a2cap.pipeline.configuration import Config, load_config, load_named_config
from a2cap.pipeline.engine.artifact_names import EPOCHS, EVALUATE, METRICS, REPORT, RESULTS
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.evaluation.results import read_results
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics.metric_table import rows_as_html, score_rows

logger = logging.getLogger(__name__)

AnyConfig = Config | Mapping[str, object] | str | PathLike[str] | None
"""A YAML file or the name of a bundled one, such as "a2-gate", its content, None for defaults."""
Phase = Literal["xe", "scst", "all"]


@dataclass(frozen=True)
class Result:
    """A finished stage: its folder, the items that it skipped, and True in `ran` if it ran now."""

    folder: Path
    skipped: tuple[SkippedItem, ...]
    ran: bool


@dataclass(frozen=True)
class Training(Result):
    """A trained captioner.

    config, artifacts: of the experiment. epochs: validation metrics and losses of each epoch; 0
    is the start of a training that goes on from a captioner.
    """

    config: Config = field(repr=False)
    artifacts: Path = field(repr=False)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """One row for each epoch: its number, losses and validation metrics."""
        lines = (self.folder / EPOCHS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def captioner(self, *, device: str = "auto", **decoding: object) -> Captioner:
        """Load the captioner; arguments as for `load`."""
        return load(self.folder, device=device, **decoding)

    def evaluate(self, settings: Mapping[str, object] | None = None) -> "Evaluation":
        """Evaluate the captioner, with other fields if they are given."""
        return evaluate(self.config, settings, artifacts=self.artifacts)


@dataclass(frozen=True)
class Evaluation(Result):
    """Captions and scores of a captioner.

    metrics: values in [0, 1], CIDEr above.
    confidence: 95 % intervals.
    not_run: reason of each metric without a value.
    captions: by image id.
    n: images that were scored.
    """

    metrics: dict[str, float]
    confidence: dict[str, tuple[float, float]] = field(repr=False)
    not_run: dict[str, str]
    captions: dict[str, str] = field(repr=False)
    n: int

    @property
    def report(self) -> Path:
        """The report, a page of HTML."""
        return self.folder / REPORT

    def _repr_html_(self) -> str:
        """Return the metrics as a table, as a notebook shows them."""
        return rows_as_html(score_rows(self.metrics, self.confidence, self.not_run))


def train(
    config: AnyConfig = None,
    settings: Mapping[str, object] | None = None,
    *,
    artifacts: str | PathLike[str] = "artifacts",
    phase: Phase = "all",
    force: bool = False,
) -> Training:
    """Train a captioner, as `a2 run --until train` does: what is finished is not run again.

    config: of the experiment.
    settings: values by dotted name, such as {"train.epochs": 3}, which come before those of
        `config`.
    phase: xe, cross-entropy; scst, self-critical training after it; all, the second only if
        scst.epochs is set.
    force: train again.
    Raises A2Error for unusable settings or data, with all problems at once.

    >>> train("a2-gate", {"data.images": "coco/images"}).captioner()  # doctest: +SKIP
    """
    if phase not in get_args(Phase):
        raise ConfigError(
            f"phase is unknown: {phase!r}; choose one of {', '.join(get_args(Phase))}"
        )
    with _opened(config, settings, artifacts) as experiment:
        stages = experiment.phase(phase)
        before = experiment.names[: experiment.names.index(stages[0])]
        done = _run(experiment, before, stages, force=force)
        return Training(
            done.directory, done.manifest.skipped, done.ran, experiment.config, experiment.artifacts
        )


def evaluate(
    config: AnyConfig = None,
    settings: Mapping[str, object] | None = None,
    *,
    artifacts: str | PathLike[str] = "artifacts",
    force: bool = False,
) -> Evaluation:
    """Train and evaluate a captioner, as `a2 run` does; arguments and errors as for `train`.

    >>> evaluate("a2-gate", {"data.images": "coco/images"}).metrics["CIDEr"]  # doctest: +SKIP
    """
    with _opened(config, settings, artifacts) as experiment:
        done = _run(experiment, experiment.names[:-1], [EVALUATE], force=force)
    folder = done.directory
    content = read_output(folder, METRICS)
    return Evaluation(
        folder,
        done.manifest.skipped,
        done.ran,
        metrics=content["metrics"],
        confidence={name: tuple(ends) for name, ends in content.get("confidence", {}).items()},
        not_run=content["not_run"],
        captions=read_results(folder / RESULTS),
        n=content["n"],
    )


def configure(config: AnyConfig = None, settings: Mapping[str, object] | None = None) -> Config:
    """Return a configuration with other values of some fields; arguments as for `train`.

    Raises ConfigError, which lists all problems.
    """
    overrides = [(name, _plain(name, value)) for name, value in (settings or {}).items()]
    if isinstance(config, str | PathLike):
        return load_named_config(Path(config), overrides)
    content = config.model_dump(mode="json") if isinstance(config, Config) else config or {}
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ConfigError(f"not a configuration: {kind}; give a file, its content or a Config")
    inside: list[tuple[str, object]] = []
    for section, fields in content.items():
        if isinstance(fields, Mapping):
            inside += [(f"{section}.{n}", _plain(f"{section}.{n}", v)) for n, v in fields.items()]
        else:  # model: the name of a kind
            inside.append((section, _plain(section, fields)))
    return load_config(None, [*inside, *overrides])


def _plain(name: str, value: object) -> object:
    """Return paths as texts, tuples as lists; raise ConfigError for what YAML could not state."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(name, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if value is not None and type(value) not in (bool, int, float, str):
        raise ConfigError(
            f"{name}: not a value of a setting: {type(value).__name__}; "
            "give a number, text, path or list"
        )
    return value


def _opened(
    config: AnyConfig, settings: Mapping[str, object] | None, artifacts: str | PathLike[str]
) -> Experiment:
    return Experiment(configure(config, settings), Path(artifacts))


def _run(
    experiment: Experiment, before: Sequence[str], stages: Sequence[str], *, force: bool
) -> Outcome:
    """Run stages after those that they read; return the outcome of the last one."""

    def report(name: str, outcome: Outcome) -> None:
        logger.info("%s: %s: %s", name, "done" if outcome.ran else "up to date", outcome.directory)

    if not force:
        return experiment.run_all([*before, *stages], report)[-1]
    experiment.run_all(before, report)
    return experiment.run_all(stages, report, force=True)[-1]
