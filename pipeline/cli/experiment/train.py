"""Command `a2 train`: training of a captioner, or of the image encoder that it reads."""

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
@click.option(
    "--task",
    type=click.Choice(["captioner", "encoder"]),
    default="captioner",
    show_default=True,
    help="encoder: the network of extract.grid_backbone, on images and their captions, where "
    "extract.weights is encoder (section encoder); before a2 extract.",
)
def train(options: ExperimentOptions, force: bool, phase: str, task: str) -> None:
    """Train a captioner, or the image encoder that its features come from.

    With several GPUs, run torchrun --nproc-per-node 2 -m a2cap.pipeline train with the options
    below. train.batch_size is the global batch size; stages and keys do not
    depend on the number of processes.

    \b
    Example:
      a2 train -c configs/a2-gate.yaml --set train.batch_size=20
      a2 train -c configs/a2-gate.yaml --phase scst --set scst.epochs=15
      a2 train -c configs/flickr8k-photos.yaml --task encoder
    """
    with options.open() as experiment:
        names = experiment.encoder() if task == "encoder" else experiment.phase(phase)
        outcomes = experiment.run_all(names, print_outcome, force=force)
    end_stages(outcomes)
