"""Command `a2 train`: cross-entropy and self-critical training of a captioner."""

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import force_option
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.run_stages import end_stages


@click.command()
@experiment_options(distributed=True)
@force_option
@click.option(
    "--phase",
    type=click.Choice(["xe", "scst", "all"]),
    default="all",
    show_default=True,
    help="Train only this phase. xe: cross-entropy. scst: self-critical, after cross-entropy, if "
    "scst.epochs is set. --force covers the chosen phases.",
)
def train(options: ExperimentOptions, force: bool, phase: str) -> None:
    """Train a captioner on features and captions.

    With several GPUs, run torchrun --nproc-per-node 2 -m a2cap.pipeline train with the options
    below. train.batch_size is the global batch size; stages and keys do not
    depend on the number of processes.

    \b
    Example:
      a2 train -c configs/a2-gate.yaml --set train.batch_size=20
      a2 train -c configs/a2-gate.yaml --phase scst --set scst.epochs=15
    """
    with options.open() as experiment:
        outcomes = experiment.run_all(experiment.phase(phase), print_outcome, force=force)
    end_stages(outcomes)
