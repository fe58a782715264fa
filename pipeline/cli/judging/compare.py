"""Command `a2 compare`: two evaluations over the same images, side by side."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import click

from a2cap.data.files.paths import require_folder
from a2cap.data.image_ids import find_images
from a2cap.pipeline.cli.commands import Restarted
from a2cap.pipeline.cli.options import FILE, FOLDER
from a2cap.pipeline.cli.print_scores import print_differences
from a2cap.pipeline.engine.artifact_names import REPORT
from a2cap.pipeline.evaluation.comparison import compare_runs
from a2cap.pipeline.report.comparison_page import write_comparison
from a2cap.pipeline.runs import curve_of, find_result, title_of


@click.command(cls=Restarted)
@click.argument("first", metavar="RUN_A", type=FOLDER)
@click.argument("second", metavar="RUN_B", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--report",
    type=FILE,
    metavar="FILE",
    help="Write a page of the captions that B fixed, broke and changed.",
)
@click.option("--images", type=FOLDER, help="Show the images of this folder in the page.")
def compare(
    first: Path, second: Path, as_json: bool, report: Path | None, images: Path | None
) -> None:
    """Compare two evaluations over the same images.

    RUN_A and RUN_B are folders of "a2 evaluate" or above one, or names, starts of keys or "latest"
    of "a2 runs". A paired bootstrap resamples the images 1,000 times; a difference whose 95 %
    interval contains 0 may be due to chance.

    \b
    Example:
      a2 compare artifacts/evaluate/0123456789ab artifacts/evaluate/ba9876543210
      a2 compare a2-gate latest --report comparison.html
    """
    if images and report is None:
        raise click.UsageError("--images belongs to --report; name a file, or leave it out")
    files = find_images(require_folder(images, "--images")) if images else {}
    first, second = (find_result(path, "evaluation") for path in (first, second))
    names = title_of(first), title_of(second)
    comparison = compare_runs(first, second, captions=report is not None, names=names)
    if report is not None:
        comparison = replace(comparison, curves=(curve_of(first), curve_of(second)))
        write_comparison(report, comparison, files, (first / REPORT, second / REPORT))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in comparison.metrics], indent=1))
        return
    print_differences(comparison.names, comparison.metrics)
    if report is not None:
        click.echo(f"report: {report}")
