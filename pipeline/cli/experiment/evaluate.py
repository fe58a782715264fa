"""Command `a2 evaluate`: captions and scores of a captioner."""

from pathlib import Path

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import FOLDER, force_option
from a2cap.pipeline.cli.run_stages import run_stages
from a2cap.pipeline.configuration import override


@click.command()
@experiment_options()
@force_option
@click.option(
    "--model",
    type=FOLDER,
    help="Set evaluate.model: evaluate this model of transformers, a folder of save_pretrained or "
    "org/name in its cache, on the images.",
)
def evaluate(options: ExperimentOptions, force: bool, model: Path | None) -> None:
    """Evaluate a captioner.

    Writes its captions, scores and a report. "a2 score" scores captions in a file.

    \b
    Example:
      a2 evaluate -c configs/a2-gate.yaml --set evaluate.beam_size=3
      a2 evaluate -c configs/a2-gate.yaml --model my-vlm --set evaluate.max_length=40
    """
    settings = [] if model is None else [override("evaluate.model", model)]
    with options.open(*settings) as experiment:
        run_stages(experiment, ["evaluate"], force=force)
