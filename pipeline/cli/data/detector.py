"""Commands `a2 detector`: training and evaluation of a detector."""

import json

import click

from a2cap.data.files.sealed_folder import read_output
from a2cap.pipeline.cli.commands import EXIT_SKIPPED, Commands, Restarted
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import force_option, log
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.print_scores import print_detector
from a2cap.pipeline.engine.artifact_names import DETECTOR, DETECTOR_FIGURES, TRAIN_DETECTOR
from a2cap.pipeline.training.detector.validation import evaluate_detector


@click.group(cls=Commands)
def detector() -> None:
    """Train and evaluate an object detector.

    \b
    Example:
      a2 detector train -c configs/detector-scenes.yaml
    """


@detector.command()
@experiment_options(distributed=True)
@force_option
def train(options: ExperimentOptions, force: bool) -> None:
    """Train a detector on labelled images.

    Prints the metrics of the best epoch and the path of its weights, for extract.weights. Labels
    are COCO instances, or Visual Genome's objects.json and attributes.json, named in the section
    `detector` of the configuration. With several GPUs, run torchrun --nproc-per-node 2 -m
    a2cap.pipeline detector train with the options below; detector.batch_size is the global batch
    size.

    \b
    Example:
      a2 detector train -c configs/detector-scenes.yaml
      a2 detector train -c configs/detector-visual-genome.yaml --set detector.images=VG
    """
    with options.open() as experiment:
        outcomes = experiment.run_all([TRAIN_DETECTOR], print_outcome, force=force)
    for outcome in outcomes:
        print_detector(read_output(outcome.directory, DETECTOR_FIGURES))
        click.echo(f"weights: {outcome.directory / DETECTOR}")
        if outcome.manifest.skipped:
            raise click.exceptions.Exit(EXIT_SKIPPED)


@detector.command(cls=Restarted)
@experiment_options()
@click.option(
    "--weights", required=True, help="Weights file of a known layout, or a name of a2 weights."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(options: ExperimentOptions, weights: str, as_json: bool) -> None:
    """Evaluate a detector.

    Prints COCO's AP and the recall of its proposals on the validation images of the section
    `detector`, scaled by the conventions of the weights.

    \b
    Example:
      a2 detector evaluate -c configs/detector-scenes.yaml --weights scenes
    """
    log(options.verbose)
    config = options.config()  # without an experiment: nothing is stored
    figures = evaluate_detector(config.detector, config.runtime, weights)
    if as_json:
        click.echo(json.dumps(figures, indent=1))
    else:
        print_detector(figures)
