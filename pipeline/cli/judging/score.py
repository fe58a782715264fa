"""Command `a2 score`: metrics of captions in a file."""

from pathlib import Path

import click

from a2cap.data.annotations.layouts import LAYOUTS
from a2cap.data.tokenizers import TOKENIZERS, Tokenizer
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import FILE, FOLDER, force_option, require_existing
from a2cap.pipeline.cli.print_scores import has_spice, print_differences, print_summary
from a2cap.pipeline.evaluation.comparison import compare_scores
from a2cap.pipeline.evaluation.results import missing_captions
from a2cap.pipeline.evaluation.score_captions import (
    ScoredFiles,
    image_cards,
    require_unscored,
    write_evaluation,
    write_per_image,
)
from a2cap.pipeline.metrics.cider import IDFS, Idf
from a2cap.pipeline.metrics.metric_table import metric_name, needs_java


@click.command(epilog=f"Forms: {'; '.join(layout.name for layout in LAYOUTS)}.")
@click.argument("captions", type=FILE)
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
@force_option
def score(
    captions: Path,
    references: Path | None,
    caption_column: str | None,
    reference_columns: tuple[str, ...],
    most_references: int | None,
    compare: Path | None,
    per_image: Path | None,
    output: Path | None,
    images: Path | None,
    allow_missing: bool,
    spice: bool,
    metrics: tuple[str, ...],
    tokenizer: Tokenizer | None,
    idf: Idf,
    word_groups: Path | None,
    scenes: Path | None,
    force: bool,
) -> None:
    """Score captions against references.

    CAPTIONS: a file in any of the forms below. Captions without images, such as the lines of a
    text, are in the order of the references: of "images" in COCO captions, else of the first
    caption of each image. Prints each metric with its 95 % interval. The exit code is 3 if
    captions are missing, which --allow-missing permits, or SPICE cannot run.

    \b
    Example:
      a2 score theirs.json --references captions_val2014.json
      a2 score ours.csv --references references.json --compare theirs.json --output scores
    """
    if images and output is None:
        raise click.UsageError("--images belongs to --output; name a folder, or leave it out")
    named = {"CAPTIONS": captions, "--references": references, "--compare": compare}
    require_existing({name: [path] for name, path in named.items() if path})
    if output is not None:
        require_unscored(output, force=force)
    metrics = tuple(map(metric_name, metrics))
    spice = spice or needs_java(metrics)

    def files(path: Path) -> ScoredFiles:
        return ScoredFiles(
            path,
            references,
            allow_missing,
            spice,
            word_groups,
            scenes,
            tokenizer,
            idf,
            most_references,
            metrics,
            caption_column,
            reference_columns,
        )

    found = files(captions).score()
    print_summary(found.scores, found.statistics)
    if compare is not None:
        other = files(compare).score()
        print_differences(
            (f"A {compare.name}", f"B {captions.name}"), compare_scores(other.scores, found.scores)
        )
    if per_image is not None:
        write_per_image(per_image, found)
    if output is not None:
        write_evaluation(output, found, image_cards(found, images))
        click.echo(f"report: {output / 'report.html'}")
    if found.skipped:
        text = missing_captions([found.keys[i] for i in found.skipped], found.total)
        click.echo(f"a2: {text}; scored without them", err=True)
    if found.skipped or (spice and not has_spice(found.scores.not_run)):
        raise click.exceptions.Exit(EXIT_SKIPPED)
