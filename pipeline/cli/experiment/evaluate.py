"""Command `a2 evaluate`: captions and scores of a captioner."""

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import force_option
from a2cap.pipeline.cli.run_stages import run_stages


@click.command()
@experiment_options()
@force_option
def evaluate(options: ExperimentOptions, force: bool) -> None:
    """Evaluate a captioner.

    Writes its captions, scores and a report. "a2 score" scores captions in a file.

    \b
    Example:
      a2 evaluate -c configs/a2-gate.yaml --set evaluate.beam_size=3
    """
    with options.open() as experiment:
        run_stages(experiment, ["evaluate"], force=force)
