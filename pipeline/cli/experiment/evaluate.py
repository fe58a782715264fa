"""Command `a2 evaluate`: captions and scores of a captioner, or scores of external captions."""

from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import (
    FILE,
    FOLDER,
    ExperimentOptions,
    experiment_options,
    force_option,
    log,
    require_existing,
)
from a2cap.pipeline.cli.run_stages import run_stages
from a2cap.pipeline.cli.scores import has_spice, print_scores
from a2cap.pipeline.evaluation.evaluate import score_results
from a2cap.pipeline.evaluation.results import missing_captions


@click.command()
@experiment_options()
@force_option
@click.option(
    "--results",
    type=FILE,
    help="Score these external captions (COCO results); needs --references and --output.",
)
@click.option(
    "--references",
    type=FILE,
    help="References of --results: a COCO caption file, or dataset_coco.json.",
)
@click.option("--output", type=FOLDER, help="Write the scores of --results into this folder.")
@click.option(
    "--allow-missing", is_flag=True, help="Score --results that lack captions of some images."
)
@click.option("--images", type=FOLDER, help="Show the images of this folder in the report.")
def evaluate(
    options: ExperimentOptions,
    force: bool,
    results: Path | None,
    references: Path | None,
    output: Path | None,
    allow_missing: bool,
    images: Path | None,
) -> None:
    """Evaluate a captioner, or external captions.

    Writes scores and a report. External captions must contain exactly one non-empty caption for
    each image with references.
    With --allow-missing, the exit code is 3 if some are missing.

    \b
    Example:
      a2 evaluate -c configs/a2-gate.yaml --set evaluate.beam_size=3
      a2 evaluate --results theirs.json --references captions_val2014.json --output scores
    """
    named = [results, references, output]
    if any(named) and not all(named):
        raise click.UsageError("--results, --references and --output belong together; name all")
    if results is None and (allow_missing or images):
        option = "--allow-missing" if allow_missing else "--images"
        raise click.UsageError(f"{option} belongs to --results; name them, or leave it out")
    if results is None or references is None or output is None:
        with options.open() as experiment:
            run_stages(experiment, ["evaluate"], force=force)
        return
    require_existing({"--results": [results], "--references": [references]})
    log(options.verbose)
    config = options.config()
    found = score_results(
        results,
        references,
        output,
        force=force,
        allow_missing=allow_missing,
        spice=config.evaluate.spice,
        word_groups=config.data.word_groups,
        scenes=config.data.scenes,
        images=images,
        report_images=config.evaluate.report_images,
        tokenizer=config.preprocess.tokenizer,
    )
    print_scores(found.scores.metrics, found.scores.not_run)
    click.echo(f"report: {output / 'report.html'}")
    if found.skipped:
        text = missing_captions(list(found.skipped), found.total)
        click.echo(f"a2: {text}; scored without them", err=True)
    is_complete = not config.evaluate.spice or has_spice(found.scores.not_run)
    if found.skipped or not is_complete:
        raise click.exceptions.Exit(EXIT_SKIPPED)
