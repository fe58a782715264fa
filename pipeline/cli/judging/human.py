"""Command `a2 human`: a blind comparison of two captioners by people."""

import json
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from random import Random

import click

from a2cap.data.files.sealed_folder import require_intact
from a2cap.pipeline.cli.commands import Commands
from a2cap.pipeline.cli.options import FILE, FOLDER, PATH, require_existing
from a2cap.pipeline.engine.artifact_names import RESULTS
from a2cap.pipeline.evaluation.human import SheetKey, Tally, write_sheet
from a2cap.pipeline.evaluation.human import tally as count_answers
from a2cap.pipeline.evaluation.references import read_references
from a2cap.pipeline.evaluation.results import read_together

_HUMAN = "a human reference"
_HEADER = f"{'':<12} {'A':>6} {'tie':>6} {'B':>6}  {'B - A':>7}  {'95 % interval':^18}  kappa"


@click.group(cls=Commands)
def human() -> None:
    """Let people compare the captions of two captioners.

    \b
    Example:
      a2 human sheet artifacts/evaluate/0123456789ab artifacts/evaluate/ba9876543210 \\
                     --images coco/images --output sheet
      a2 human tally sheet answers-1.csv answers-2.csv
    """


@human.command()
@click.argument("first", metavar="A", type=PATH)
@click.argument("second", metavar="B", type=PATH)
@click.option("--images", required=True, type=FOLDER, help="Show the images in this folder.")
@click.option(
    "--references", type=FILE, help="Add one human reference per image as a third candidate."
)
@click.option("--output", required=True, type=FOLDER, help="Write the sheet into this new folder.")
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Draw this many images; the paper drew 400.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draw."
)
def sheet(
    first: Path,
    second: Path,
    images: Path,
    references: Path | None,
    output: Path,
    count: int,
    seed: int,
) -> None:
    """Write a shuffled, blinded sheet of captions of A and B.

    A and B are folders of "a2 evaluate" or COCO results files. Send sheet.html or sheet.csv to the
    judges, and keep key.json. With --references, each image has three pairs: A and B, and each of
    them with a reference, whose tokens are shown so that case and full stop do not give it away.

    \b
    Example:
      a2 human sheet baseline.json a2.json --images coco/images --output sheet
    """
    files = [path / RESULTS if path.is_dir() else path for path in (first, second)]
    if first == second:
        raise click.UsageError("A and B are the same; name two captioners")
    require_existing({"A": files[:1], "B": files[1:], "--images": [images]})
    for path in (first, second):
        require_intact(path, RESULTS)
    compared = None
    if references is not None:
        require_existing({"--references": [references]})
        compared = read_references(references)
    read = read_together(files, compared)
    captions = {str(path): texts for path, texts in zip((first, second), read, strict=True)}
    if compared is not None:
        draw = Random(seed)
        tokens = sorted(compared.tokens().items())
        captions[_HUMAN] = {image_id: draw.choice(tokenized) for image_id, tokenized in tokens}
    key = write_sheet(output, captions, images, count=count, seed=seed)
    pairs = f" and {len(key.items)} pairs" if references else ""
    click.echo(f"{output}: {count} images{pairs}; send sheet.html, keep key.json")


@human.command()
@click.argument("folder", metavar="SHEET", type=FOLDER)
@click.argument("answers", nargs=-1, required=True, type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tally(folder: Path, answers: tuple[Path, ...], as_json: bool) -> None:
    """Count the answers of the judges.

    SHEET is the folder of "a2 human sheet", ANSWERS are one CSV file per judge. Prints for each
    criterion how often A and B won, the difference with its 95 % interval, and Fleiss' kappa.

    \b
    Example:
      a2 human tally sheet answers-1.csv answers-2.csv
    """
    key = SheetKey.read(folder)
    rows = count_answers(key, answers)
    if as_json:
        content = {"names": key.names, "criteria": [asdict(row) for row in rows]}
        click.echo(json.dumps(content, indent=1))
        return
    for (first, second), of_pair in groupby(rows, key=attrgetter("pair")):
        click.echo(f"A: {key.names[first]}\nB: {key.names[second]}")
        click.echo(_HEADER)
        click.echo("\n".join(map(_line, of_pair)))


def _line(row: Tally) -> str:
    ends = f"{row.low:+.4f} to {row.high:+.4f}"
    kappa = "one judge" if row.agreement is None else f"{row.agreement:.3f}"
    return (
        f"{row.criterion:<12} {row.first:>6.1%} {row.tie:>6.1%} {row.second:>6.1%}  "
        f"{row.difference:>+7.4f}  {ends:^18}  {kappa}"
    )
