"""Figures of docs/claims.md: their measurement, and the page with them.

Without options it writes the page from `results/claims.csv`. `--measure PART` measures a part first
and replaces its rows there; a stopped measurement resumes. A captioner that fails or diverges is
named in each figure that lacks it.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from a2cap.data.files.json_file import read_json, write_json
from benchmarks import captioners
from benchmarks.alignment_study import QUICK, QUICK_EXTENT, QUICK_FIELDS, measured
from benchmarks.measure import machine, print_machine
from benchmarks.study import gru, updates
from benchmarks.study.grid import DEEPENED, Extent, trials
from benchmarks.study.page import DOCS, with_figures
from benchmarks.study.results import Results, Row
from benchmarks.study.running import Study
from benchmarks.study.worlds import Images

RESULTS = Path(__file__).parent / "results"
PAGE = DOCS / "claims.md"
ROWS, MACHINES = "claims.csv", "claims.json"

DEPTH_IMAGES = Images(drawn=1500, train=1200, validate=50, test=100)
"""Fewer than in the other parts of the study, as six layers take three times as long."""


def measure_depth(folder: Path, *, quick: bool) -> list[Row]:
    """Train and measure every fusion with six encoder and six decoder layers."""
    images, fields = (QUICK, QUICK_FIELDS) if quick else (DEPTH_IMAGES, ())
    study = Study(folder, "scenes", images, analysed=4 if quick else 100, overrides=fields)
    planned = trials(QUICK_EXTENT if quick else Extent(), [DEEPENED])
    rows: list[Row] = []
    for results, news in measured(study, planned, processes=1):
        rows = list(results.rows)
        click.echo(news)
    return rows


def measure_gru(folder: Path, *, quick: bool) -> list[Row]:
    """Train and evaluate the GRU captioner with each score."""
    compared = captioners.Comparison(folder, *((40, 1, 8) if quick else (1000, 12, 64)))
    captioners.prepare(compared)
    rows = []
    for row in gru.gru_rows(compared, seeds=1 if quick else 3):
        rows.append(row)
        click.echo(f"{row.part} {row.label} {row.seed} {row.failure}".rstrip())
    return rows


def measure_updates(folder: Path, *, quick: bool) -> list[Row]:
    """Time an update of each older captioner."""
    return updates.update_rows(quick=quick, rounds=2 if quick else 5)


PARTS: Mapping[str, Callable[..., list[Row]]] = {
    DEEPENED: measure_depth,
    gru.PART: measure_gru,
    updates.PART: measure_updates,
}


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure all on tiny sizes, only to check that it runs."
)
@click.option("--measure", "parts", multiple=True, type=click.Choice(list(PARTS)))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("claims"),
    show_default=True,
    help="Folder of what is trained; with --quick a temporary one.",
)
def main(quick: bool, parts: tuple[str, ...], output: Path) -> None:
    """Measure parts of docs/claims.md and write the page."""
    if quick or parts:
        print_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder, saved = (Path(temporary),) * 2 if quick else (output.resolve(), RESULTS)
        for part in PARTS if quick else parts:
            when, about = time.strftime("%Y-%m-%d", time.gmtime()), ", ".join(machine())
            rows = PARTS[part](folder / part, quick=quick)
            minutes = sum(row.values.get("seconds", 0.0) for row in rows) / 60
            keep(saved, part, rows, f"{when}, {about}, {minutes:.0f} min")
        results, machines = read(saved)
        page = with_figures(PAGE.read_text(encoding="utf-8"), results, machines)
    if quick:
        click.echo(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


def keep(folder: Path, part: str, rows: list[Row], about: str) -> None:
    """Replace the rows of a part, and where and when it was measured."""
    results, machines = read(folder)
    others = [row for row in results.rows if row.part != part]
    Results([*others, *rows]).write(folder / ROWS)
    write_json(folder / MACHINES, {**machines, part: about})


def read(folder: Path) -> tuple[Results, dict[str, str]]:
    """Return the rows of all parts, and where and when each was measured."""
    if not (folder / ROWS).is_file():
        return Results([]), {}
    machines: Any = read_json(folder / MACHINES)
    return Results.read(folder / ROWS), dict(machines)


if __name__ == "__main__":
    main()
