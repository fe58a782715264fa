"""Command `a2 sweep`: a grid of settings, or a table of systems, run one after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import click

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.sealed_folder import read_output
from a2cap.model.errors import ModelError
from a2cap.pipeline.analysis.t_interval import t_interval
from a2cap.pipeline.captioning.model_description import require_extractor, require_vocabulary
from a2cap.pipeline.cli.commands import EXIT_ERROR, EXIT_SKIPPED, Failure
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import FILE
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.configuration import override
from a2cap.pipeline.engine.artifact_names import EXTRACT, METRICS, PREPROCESS, TRAIN_XE
from a2cap.pipeline.evaluation.score_table import as_lines, as_tabular
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.metric_table import DEFAULTS, cited, shown_name
from a2cap.pipeline.search import Search, Trial, corners, search_space
from a2cap.pipeline.sweep import Point, PointGroup, ensembles_of_seeds, grid, read_systems

_SCORES = ("CIDEr", "truth")  # truth: of generated scenes only


@click.command()
@experiment_options()
@click.option(
    "--table",
    type=FILE,
    help="Run the systems of this YAML file in all phases; print the paper's columns.",
)
@click.option("--latex", is_flag=True, help="Print the table of --table in LaTeX.")
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Search so many combinations by their validation score, in place of running all.",
)
@click.option("--dry-run", is_flag=True, help="Print what is done; run nothing.")
@click.option(
    "--ensemble",
    "with_ensembles",
    is_flag=True,
    help="Evaluate the captioners of all seeds of a setting as an ensemble too.",
)
def sweep(
    options: ExperimentOptions,
    table: Path | None,
    latex: bool,
    trials: int | None,
    dry_run: bool,
    with_ensembles: bool,
) -> None:
    """Run a grid of settings; print means over seeds.

    A value of --set may be a range (0..4) or a list (gate,decay); all combinations run one after
    the other, each as by "a2 run". Results that exist are kept, so that the same command continues
    an interrupted sweep. What fails, a combination or an ensemble, is reported and the others run;
    the exit code is then 1. An ensemble whose captioners differ in vocabulary or features is an
    error before the first training. The table has the mean over the fields "seed" with its 95 %
    interval. With --ensemble, it has the ensemble of the seeds too, as the four checkpoints of
    Table 2 of the A2 paper. With --table, each system has its own configuration, and the table is
    laid out as Table 1 and 3 of the paper, times 100: BLEU-1 and 4, METEOR, ROUGE-L, CIDEr, SPICE.
    A single run has the bootstrap interval over its images there.

    With --trials, a Bayesian search (Optuna's TPE; extra a2cap[search]) proposes the combinations;
    a range may be of real numbers, and is logarithmic if its end is 10 times its start or more. The
    validation score of the training is maximised. Once five trials have a score, a training below
    the median of the others at an epoch is pruned, and stays unfinished. The same command continues
    a search, with more trials too.

    \b
    Example:
      a2 sweep -c configs/a2-gate.yaml --set train.seed=0..4 \\
               --set model.alignment.fusion=gate,decay
      a2 sweep --table configs/tables/table1.yaml --latex
      a2 sweep -c configs/a2-gate.yaml --trials 20 --set train.lr=1e-4..1e-2 \\
               --set model.alignment.fusion=gate,decay
    """
    if latex and table is None:
        raise click.UsageError("--latex prints the table of --table; name one")
    if trials is not None:
        if table is not None or with_ensembles:
            raise click.UsageError("--trials searches; leave --table and --ensemble out")
        _search(options, trials, dry_run=dry_run)
        return
    points, ensembles = _points(options, table)
    if with_ensembles:
        ensembles += ensembles_of_seeds(points)
    if with_ensembles and len(points) == len({point.setting for point in points}):
        raise click.UsageError(
            "--ensemble joins the seeds of a setting, and each setting has one; give several, as "
            "with --set train.seed=0..3"
        )
    variants = {point.varied: _checked(options, point) for point in points}
    if dry_run:
        for varied, variant in variants.items():
            with variant.open() as experiment:
                click.echo(f"{varied}: {_state(experiment)}")
        return
    running = _Sweep(variants, ensembles)
    running.require_joinable()
    running.run_points(points)
    running.run_ensembles()
    if running.scores and table is not None:
        _print_paper(running.scores, latex=latex)
    elif running.scores:
        _print_means(running.scores)
    _end(running.failed, len(points) + len(ensembles), skipped=running.skipped)


@dataclass
class _Sweep:
    """The combinations and ensembles of a sweep, and what those that ran gave.

    variants: options of each combination. scores: of what did not fail. trained: options and
    captioner of the combinations that an ensemble may need. skipped: True if items were.
    """

    variants: Mapping[str, ExperimentOptions]
    ensembles: Sequence[PointGroup]
    scores: list[tuple[Point, Scores]] = field(default_factory=list)
    trained: dict[str, tuple[ExperimentOptions, Path]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: bool = False

    def require_joinable(self) -> None:
        """Raise A2Error if captioners of an ensemble would not fit, before hours of training.

        Runs the stages before the first training of each; what fails there is reported when the
        combination runs.
        """
        results: dict[str, tuple[Path, Path]] = {}
        for name in dict.fromkeys(name for group in self.ensembles for name in group.members):
            if name not in self.variants:
                raise InputError(
                    f"an ensemble needs {name!r}, which is not a combination; give its systems the "
                    "same values with several combinations"
                )
            click.echo(f"{name}: features and words of an ensemble")
            with self.variants[name].open() as experiment, suppress(A2Error, ModelError):
                before = experiment.names[: experiment.names.index(TRAIN_XE)]
                outcomes = dict(zip(before, experiment.run_all(before, print_outcome), strict=True))
                results[name] = outcomes[PREPROCESS].directory, outcomes[EXTRACT].directory
        for ensemble in self.ensembles:
            members = [results[name] for name in ensemble.members if name in results]
            for (captions, features), (next_captions, next_features) in pairwise(members):
                require_vocabulary(next_captions, captions)
                require_extractor(next_features, features)

    def run_points(self, points: Sequence[Point]) -> None:
        """Run all combinations."""
        for number, point in enumerate(points, 1):
            variant = self.variants[point.varied]
            click.echo(f"[{number}/{len(points)}] {point.varied}")
            with variant.open() as experiment, self._reported(point.varied):
                self._run(experiment, point)
                if self.ensembles:
                    last = experiment.result(experiment.training[-1], needed_by="evaluate")
                    self.trained[point.varied] = variant, last.directory

    def run_ensembles(self) -> None:
        """Evaluate the captioners of each ensemble."""
        for ensemble in self.ensembles:
            click.echo(ensemble.varied)
            with self._reported(ensemble.varied):
                if missing := [name for name in ensemble.members if name not in self.trained]:
                    raise InputError(f"no captioner of {'; '.join(missing)}; train it first")
                (options, _), *rest = (self.trained[name] for name in ensemble.members)
                folders = override("evaluate.ensemble", tuple(folder for _, folder in rest))
                with options.open(folders, *ensemble.overrides) as experiment:
                    self._run(experiment, Point((), ensemble.varied, ensemble.setting))

    def _run(self, experiment: Experiment, point: Point) -> None:
        scores, skipped = _run(experiment)
        self.scores.append((point, scores))
        self.skipped = self.skipped or skipped

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Report an error of the block and note its name, so that the sweep goes on."""
        try:
            yield
        except (A2Error, ModelError) as error:
            self.failed.append(name)
            click.echo(f"a2: {name} failed: {error}", err=True)


def _end(failed: Sequence[str], count: int, *, skipped: bool) -> None:
    """Exit with 1 if some of `count` runs failed, with 3 if items were skipped."""
    if failed:
        text = f"{len(failed)} of {count} failed: {'; '.join(failed)}"
        raise Failure(f"{text}; run the same command again to continue", EXIT_ERROR)
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _search(options: ExperimentOptions, trials: int, *, dry_run: bool) -> None:
    """Search settings; print the trials, the best first."""
    choices = search_space(options.overrides)
    for corner in corners(choices):
        replace(options, overrides=tuple(corner)).config()
    search = Search(choices)
    for choice in choices:
        if choice.is_searched:
            click.echo(f"search {choice}")
    if dry_run:
        return
    done, skipped = list[Trial](), False

    def opened(overrides: Sequence[str]) -> Experiment:
        return replace(options, overrides=tuple(overrides)).open()

    def work(experiment: Experiment, setting: str) -> None:
        nonlocal skipped
        click.echo(f"[{len(done) + 1}/{trials}] {setting}")
        skipped = _run(experiment)[1] or skipped

    while len(done) < trials:
        done.append(search.run(opened, work))
        if done[-1].score is None:
            click.echo(f"a2: {done[-1].setting} {done[-1].outcome}", err=True)
    _print_trials(done)
    failed = [trial.setting for trial in done if trial.outcome.startswith("failed")]
    _end(failed, trials, skipped=skipped)


def _print_trials(trials: Sequence[Trial]) -> None:
    """Print the validation score of each trial, the best first, and the training of the best."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None]
    scored.sort(key=itemgetter(0), reverse=True)
    click.echo("validation  setting")
    for score, trial in scored:
        click.echo(f"{score:<10.3f}  {trial.setting}")
    for trial in trials:
        if trial.score is None:
            click.echo(f"{'–':<10}  {trial.setting}: {trial.outcome.partition(':')[0]}")
    if scored:
        click.echo(f"best: {scored[0][1].training}")


def _state(experiment: Experiment) -> str:
    """Return the first stage that is not done, with its state, or "done"."""
    statuses = (experiment.status(name) for name in experiment.names)
    unfinished = (f"{status.stage} {status.state}" for status in statuses if status.state != "done")
    return next(unfinished, "done")


def _points(options: ExperimentOptions, table: Path | None) -> tuple[list[Point], list[PointGroup]]:
    """Return the points of the grid or the table, and the ensembles of the table."""
    if table is None:
        return grid(options.overrides), []
    if options.config_file is not None:
        raise click.UsageError("the systems of --table have configurations; leave -c out")
    systems = read_systems(table)
    points = systems.points(table.parent, options.overrides)
    return points, systems.joined(points)


def _checked(options: ExperimentOptions, point: Point) -> ExperimentOptions:
    """Return the options of a point, whose wrong value is an error before hours of training."""
    config = point.config or options.config_file
    variant = replace(options, overrides=point.overrides, config_file=config)
    variant.config()
    return variant


def _run(experiment: Experiment) -> tuple[Scores, bool]:
    """Run all stages; return the metrics, and True if items were skipped."""
    outcomes = experiment.run_all(experiment.names, print_outcome)
    content = read_output(outcomes[-1].directory, METRICS)
    scores = Scores(content["metrics"], {}, {}, content["confidence"])
    return scores, any(outcome.manifest.skipped for outcome in outcomes)


def _of_setting(scores: list[tuple[Point, Scores]]) -> dict[str, list[Scores]]:
    of_setting: dict[str, list[Scores]] = {}
    for point, run_scores in scores:
        of_setting.setdefault(point.setting, []).append(run_scores)
    return of_setting


def _print_paper(scores: list[tuple[Point, Scores]], *, latex: bool) -> None:
    """Print a row for each system and phase in the columns of the paper, times 100."""
    names = cited(DEFAULTS)
    rows = [["system", *map(shown_name, names)]]
    for setting, runs in _of_setting(scores).items():
        rows.append([setting, *(_cell(runs, name) for name in names)])
    click.echo(as_tabular(rows) if latex else as_lines(rows))


def _cell(runs: list[Scores], name: str) -> str:
    """Format the mean of a metric with an interval: over seeds, or over images for a single run."""
    if any(name not in run.metrics for run in runs):
        return "–"
    mean = t_interval([100 * run.metrics[name] for run in runs])
    if len(runs) > 1:
        return f"{mean.mean:.1f} ± {mean.half_width:.1f}"
    if name not in runs[0].confidence:
        return f"{mean.mean:.1f}"
    low, high = runs[0].confidence[name]
    return f"{mean.mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _print_means(scores: list[tuple[Point, Scores]]) -> None:
    """Print a row for each setting: the number of seeds, and the mean of each score."""
    of_setting = _of_setting(scores)
    shown = [name for name in _SCORES if all(name in run.metrics for _, run in scores)]
    width = max(7, *map(len, of_setting))
    click.echo(f"{'setting':<{width}}  runs{''.join(f'  {name:<13}' for name in shown)}".rstrip())
    for setting, rows in of_setting.items():
        means = (str(t_interval([row.metrics[name] for row in rows])) for name in shown)
        columns = "".join(f"  {mean:<13}" for mean in means)
        click.echo(f"{setting:<{width}}  {len(rows):>4}{columns}".rstrip())
