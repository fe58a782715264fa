"""Alignment study: captioners of every fusion, trained and measured where grounding is known.

Writes `results.csv`, `tables.md` and figures into the folder of --output. Finished work is not
repeated, so a stopped study resumes. docs/alignment-study.md explains the measures and results.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from a2cap.data.errors import A2Error
from benchmarks.measure import print_machine
from benchmarks.study.grid import STUDIED, Extent, Trial, trials
from benchmarks.study.results import Results, Row, failed_row, row
from benchmarks.study.running import CROSS_ENTROPY, Study, jobs, plain_start, prepare, run_jobs
from benchmarks.study.tables import all_tables, draw_figures
from benchmarks.study.worlds import Images

QUICK = Images(drawn=40, train=20, validate=4, test=4)

QUICK_FIELDS = ("train.epochs=1", "scst.epochs=1", "model.width=16", "extract.max_regions=10")
QUICK_EXTENT = Extent(
    fusions=("none", "gate"),
    planted_fusions=("gate",),
    weights=(0.3,),
    deep_weights=(0.3,),
    ablations=("linear masks (Eq. 2 to the letter)",),
    seeds=2,
    planted_seeds=1,
    other_seeds=1,
)

RESULTS, TABLES = "results.csv", "tables.md"


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Train a few tiny captioners, only to check that it runs.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("alignment-study"),
    show_default=True,
    help="Folder of all output; with --quick a temporary one.",
)
@click.option("--weights", default="scenes", show_default=True, help="Weights of the detector.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Seeds per part; by default as in the grid.",
)
@click.option("--parts", type=click.Choice(STUDIED), multiple=True, help="Run only these parts.")
@click.option(
    "--drawn",
    type=click.IntRange(30),
    default=6000,
    show_default=True,
    help="Number of scenes: four fifths train, a thirtieth validates, a fifteenth tests.",
)
@click.option(
    "--start",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Continue this captioner, without its masks, for three epochs in place of sixteen.",
)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def main(
    quick: bool,
    output: Path,
    weights: str,
    seeds: int | None,
    parts: tuple[str, ...],
    processes: int,
    drawn: int,
    start: Path | None,
) -> None:
    """Train and measure the captioners of the alignment study."""
    print_machine()
    logging.disable(logging.WARNING)
    extent = QUICK_EXTENT if quick else Extent()
    if seeds is not None:
        extent = replace(extent, seeds=seeds, planted_seeds=seeds, other_seeds=seeds)
    planned = trials(extent, parts or STUDIED)
    full = Images(drawn, train=4 * drawn // 5, validate=drawn // 30, test=drawn // 15)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (Path(temporary) if quick else output).resolve()
        study = Study(
            folder=folder,
            weights=weights,
            images=QUICK if quick else full,
            analysed=4 if quick else 100,
            overrides=QUICK_FIELDS if quick else (),
            start=start and plain_start(start, folder / "start"),
        )
        try:
            _run(study, planned, processes=processes)
        except A2Error as error:
            raise click.ClickException(str(error)) from error


def _run(study: Study, planned: Sequence[Trial], *, processes: int) -> None:
    """Run all trials; update tables and figures after each training."""
    for results, news in measured(study, planned, processes=processes):
        results.write(study.folder / RESULTS)
        (study.folder / TABLES).write_text(all_tables(results), encoding="utf-8")
        draw_figures(results, study.folder)
        click.echo(news)
    click.echo((study.folder / TABLES).read_text(encoding="utf-8"))


def measured(
    study: Study, planned: Sequence[Trial], *, processes: int
) -> Iterator[tuple[Results, str]]:
    """Yield the results so far, and a line about the last captioner, after each training."""
    prepare(study, list(dict.fromkeys(trial.world for trial in planned)))
    listed = jobs(study, planned)
    rows_of: dict[Trial, list[Row]] = {}
    for number, (job, findings) in enumerate(run_jobs(study, listed, processes=processes), start=1):
        names = ", ".join(f"{trial.part} {trial.label} {trial.seed}" for trial in job.trials)
        news = f"{number} of {len(listed)}: {names}"
        for trial in job.trials:
            if isinstance(findings, Exception):
                failed = failed_row(trial.part, trial.label, trial.seed, findings)
                rows_of[trial] = [failed]
                news = f"{number} of {len(listed)}: {names} failed: {failed.failure}"
                continue
            rows_of[trial] = [
                row(trial, finding)
                for finding in findings
                if trial.self_critical or finding.phase == CROSS_ENTROPY
            ]
        yield Results([line for trial in planned for line in rows_of.get(trial, ())]), news


if __name__ == "__main__":
    main()
