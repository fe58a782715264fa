"""Command `a2 sweep`: a grid of settings, run one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import read_output
from a2cap.model.errors import ModelError
from a2cap.pipeline.cli.commands import EXIT_ERROR, EXIT_SKIPPED, Failure
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.configuration import override
from a2cap.pipeline.engine.artifact_names import METRICS
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.sweep import Point, grid, t_interval

_SCORES = ("CIDEr", "truth")  # truth: of generated scenes only


@click.command()
@experiment_options()
@click.option("--dry-run", is_flag=True, help="Print what is done; run nothing.")
@click.option(
    "--ensemble",
    "with_ensembles",
    is_flag=True,
    help="Evaluate the captioners of all seeds of a setting as an ensemble too.",
)
def sweep(options: ExperimentOptions, dry_run: bool, with_ensembles: bool) -> None:
    """Run a grid of settings; print means over seeds.

    A value of --set may be a range (0..4) or a list (gate,decay); all combinations run one after
    the other, each as by "a2 run". Results that exist are kept, so that the same command continues
    an interrupted sweep. What fails, a combination or an ensemble, is reported and the others run;
    the exit code is then 1. The table has the mean over the fields "seed" with its 95 % interval.
    With --ensemble, it has the ensemble of the seeds too, as the four checkpoints of Table 2 of the
    A2 paper.

    \b
    Example:
      a2 sweep -c configs/a2-gate.yaml --set train.seed=0..4 \\
               --set model.alignment.fusion=gate,decay
    """
    points = grid(options.overrides)
    variants = [replace(options, overrides=point.overrides) for point in points]
    for variant in variants:
        variant.config()  # a wrong value is an error before hours of training
    if with_ensembles and len(points) == len({point.setting for point in points}):
        raise click.UsageError(
            "--ensemble joins the seeds of a setting, and each setting has one; give several, as "
            "with --set train.seed=0..3"
        )
    scores: list[tuple[Point, dict[str, float]]] = []
    trained: dict[str, list[tuple[ExperimentOptions, Path]]] = {}
    failed, skipped = list[str](), False
    for number, (point, variant) in enumerate(zip(points, variants, strict=True), 1):
        with variant.open() as experiment:
            if dry_run:
                click.echo(f"{point.varied}: {_state(experiment)}")
                continue
            click.echo(f"[{number}/{len(points)}] {point.varied}")
            with _reported(point.varied, failed):
                run_scores, incomplete = _run(experiment)
                skipped = skipped or incomplete
                scores.append((point, run_scores))
                if with_ensembles:
                    last = experiment.result(experiment.training[-1], needed_by="evaluate")
                    trained.setdefault(point.setting, []).append((variant, last.directory))
    joinable = [members for members in trained.items() if len(members[1]) > 1]
    for setting, members in joinable:
        joined = f"{setting}, ensemble of {len(members)}"
        click.echo(joined)
        folders = tuple(folder for _, folder in members[1:])
        with (
            members[0][0].open(override("evaluate.ensemble", folders)) as experiment,
            _reported(joined, failed),
        ):
            run_scores, incomplete = _run(experiment)
            skipped = skipped or incomplete
            scores.append((Point((), joined, joined), run_scores))
    if scores:
        _print_means(scores)
    if failed:
        text = f"{len(failed)} of {len(points) + len(joinable)} failed: {'; '.join(failed)}"
        raise Failure(f"{text}; run the same command again to continue", EXIT_ERROR)
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)


@contextmanager
def _reported(name: str, failed: list[str]) -> Iterator[None]:
    """Report an error of the block and add the name to `failed`, so that the sweep goes on."""
    try:
        yield
    except (A2Error, ModelError) as error:
        failed.append(name)
        click.echo(f"a2: {name} failed: {error}", err=True)


def _state(experiment: Experiment) -> str:
    """Return the first stage that is not done, with its state, or "done"."""
    statuses = (experiment.status(name) for name in experiment.names)
    unfinished = (f"{status.stage} {status.state}" for status in statuses if status.state != "done")
    return next(unfinished, "done")


def _run(experiment: Experiment) -> tuple[dict[str, float], bool]:
    """Run all stages; return the metrics, and True if items were skipped."""
    outcomes = experiment.run_all(experiment.names, print_outcome)
    metrics = read_output(outcomes[-1].directory, METRICS)["metrics"]
    return metrics, any(outcome.manifest.skipped for outcome in outcomes)


def _print_means(scores: list[tuple[Point, dict[str, float]]]) -> None:
    """Print a row for each setting: the number of seeds, and the mean of each score."""
    of_setting: dict[str, list[dict[str, float]]] = {}
    for point, run_scores in scores:
        of_setting.setdefault(point.setting, []).append(run_scores)
    shown = [name for name in _SCORES if all(name in run_scores for _, run_scores in scores)]
    width = max(7, *map(len, of_setting))
    click.echo(f"{'setting':<{width}}  runs{''.join(f'  {name:<13}' for name in shown)}".rstrip())
    for setting, rows in of_setting.items():
        means = (str(t_interval([row[name] for row in rows])) for name in shown)
        columns = "".join(f"  {mean:<13}" for mean in means)
        click.echo(f"{setting:<{width}}  {len(rows):>4}{columns}".rstrip())
