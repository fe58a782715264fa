"""Command `a2 score`: metrics of captions in a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from a2cap.data.annotations.layouts import LAYOUTS
from a2cap.data.tokenizers import TOKENIZERS
from a2cap.pipeline.cli.commands import EXIT_SKIPPED, Restarted
from a2cap.pipeline.cli.options import FILE, FOLDER, force_option, require_existing
from a2cap.pipeline.cli.print_scores import has_spice, print_differences, print_summary, print_table
from a2cap.pipeline.evaluation.comparison import compare_scores
from a2cap.pipeline.evaluation.references import missing_captions
from a2cap.pipeline.evaluation.score_captions import (
    ScoredFiles,
    image_cards,
    require_unscored,
    write_evaluation,
    write_per_image,
)
from a2cap.pipeline.evaluation.score_table import FORMS, ScoreTable
from a2cap.pipeline.metrics.cider import IDFS
from a2cap.pipeline.metrics.metric_table import metric_name, needs_java
from a2cap.pipeline.report.report import ScoreReport

_OF_ONE_FILE = (
    "--compare, --per-image and --output belong to one file of captions; name one file, or "
    "leave them out"
)
_IMAGES_ALONE = "--images belongs to --output; name a folder, or leave it out"
_TWO_OBJECTS = "--scenes and --instances both state the objects of images; leave one of them out"


@click.command(cls=Restarted, epilog=f"Forms: {'; '.join(layout.name for layout in LAYOUTS)}.")
@click.argument("captions", type=FILE, nargs=-1, required=True)
@click.option(
    "--references",
    type=FILE,
    help="References in any form; those beside the captions in CAPTIONS if it is left out.",
)
@click.option("--caption-column", help="Field or column with the captions, if its name is another.")
@click.option(
    "--reference-column",
    "reference_columns",
    multiple=True,
    help="Field or column with references; may be repeated.",
)
@click.option(
    "--most-references",
    "most",
    type=click.IntRange(1),
    help="Compare with the first ones of each image by id: 5 in COCO's evaluations, or all.",
)
@click.option("--compare", type=FILE, help="Compare with other captions of the same images.")
@click.option("--per-image", type=FILE, help="Write the metrics of each image into a CSV file.")
@click.option("--output", type=FOLDER, help="Write metrics.json and a report into this folder.")
@click.option("--images", type=FOLDER, help="Show images of this folder in the report.")
@click.option("--allow-missing", is_flag=True, help="Score captions of some images alone.")
@click.option("--spice", is_flag=True, help="Compute SPICE too, which needs Java.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compute a further metric: distinct-1 to distinct-3, SPICE, or MODULE:FUNCTION of your "
    "own; may be repeated.",
)
@click.option(
    "--tokenizer",
    type=click.Choice(TOKENIZERS),
    help="Words that are compared; unicode for other scripts than Latin, else karpathy.",
)
@click.option(
    "--idf",
    type=click.Choice(IDFS),
    default="references",
    show_default=True,
    help="Document frequencies of CIDEr: of the references, or of COCO's training captions.",
)
@click.option("--word-groups", type=FILE, help="Score the groups of words of this file too.")
@click.option("--scenes", type=FILE, help="Judge captions of scenes by this instances.json.")
@click.option("--instances", type=FILE, help="Compute CHAIR from these instances of COCO.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--format", "form", type=click.Choice(("markdown", "latex", "csv")), help="Print such a table."
)
@force_option
def score(
    captions: tuple[Path, ...],
    references: Path | None,
    compare: Path | None,
    per_image: Path | None,
    output: Path | None,
    images: Path | None,
    spice: bool,
    metrics: tuple[str, ...],
    as_json: bool,
    form: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Score captions against references.

    CAPTIONS: a file in any of the forms below. Captions without images, such as the lines of a
    text, are in the order of the references: of "images" in COCO captions, else of the first
    caption of each image. Prints each metric with its 95 % interval. Of several files it prints
    one table, the best values marked, and the differences from the first file. The exit code is 3
    if captions are missing, which --allow-missing permits, or SPICE cannot run.

    \b
    Example:
      a2 score theirs.json --references captions_val2014.json
      a2 score ours.csv --references references.json --compare theirs.json --output scores
      a2 score theirs.json ours.csv --references references.json --format latex
      a2 score theirs.json --references dataset_coco.json --instances instances_val2014.json
    """
    instances, scenes = options["instances"], options["scenes"]
    for is_wrong, message in (
        (len(captions) > 1 and (compare or per_image or output), _OF_ONE_FILE),
        (images and output is None, _IMAGES_ALONE),
        (scenes and instances, _TWO_OBJECTS),
    ):
        if is_wrong:
            raise click.UsageError(message)
    optional_files = {"--references": references, "--compare": compare, "--instances": instances}
    files = {name: [path] for name, path in optional_files.items() if path}
    require_existing({"CAPTIONS": captions, **files})
    metrics = tuple(map(metric_name, metrics))
    spice = spice or needs_java(metrics)
    options |= {"references": references, "metrics": metrics, "spice": spice}
    if output is not None:
        require_unscored(output, force=force)

    evaluations = {
        name: ScoredFiles(path, **options).score() for name, path in _names(captions).items()
    }
    first = next(iter(evaluations.values()))
    _print(evaluations, "json" if as_json else form)
    if compare is not None:
        rows = compare_scores(ScoredFiles(compare, **options).score().scores, first.scores)
        print_differences((f"A {compare.name}", f"B {captions[0].name}"), rows)
    if per_image is not None:
        write_per_image(per_image, first)
    if output is not None:
        write_evaluation(output, first, image_cards(first, images))
        click.echo(f"report: {output / 'report.html'}", err=as_json or form is not None)
    _end(evaluations, spice=spice)


def _names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files by their names, or by their paths if two have one name."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise click.UsageError("a file of captions is named twice; name each once")
    names = [path.name for path in paths]
    is_unique = len(set(names)) == len(names)
    return {path.name if is_unique else str(path): path for path in paths}


def _print(evaluations: Mapping[str, ScoreReport], form: str | None) -> None:
    first, *later_evaluations = evaluations.values()
    table = ScoreTable({name: evaluation.scores for name, evaluation in evaluations.items()})
    if form is not None:
        click.echo(FORMS[form](table))
    elif later_evaluations:
        print_table(table)
    else:
        print_summary(first.scores, first.figures)


def _end(evaluations: Mapping[str, ScoreReport], *, spice: bool) -> None:
    """Report missing captions and a missing SPICE, which is exit code 3."""
    skipped = {name: evaluation for name, evaluation in evaluations.items() if evaluation.skipped}
    for name, evaluation in skipped.items():
        text = missing_captions([evaluation.keys[i] for i in evaluation.skipped], evaluation.total)
        where = f"{name}: " if len(evaluations) > 1 else ""
        click.echo(f"a2: {where}{text}; scored without them", err=True)
    not_run = next(iter(evaluations.values())).scores.not_run
    if skipped or (spice and not has_spice(not_run)):
        raise click.exceptions.Exit(EXIT_SKIPPED)
