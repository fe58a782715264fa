"""Command `a2 status`: which stages are finished, and why others would run."""

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.output import print_status


@click.command()
@experiment_options()
@click.option("--explain", is_flag=True, help="Print why a stage would run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(options: ExperimentOptions, explain: bool, as_json: bool) -> None:
    """Show finished stages, and why others would run.

    \b
    Example:
      a2 status -c configs/a2-gate.yaml --explain
    """
    with options.open() as experiment:
        shown = experiment.shown
        print_status(experiment, shown, explain=explain, as_json=as_json, stop=False)
