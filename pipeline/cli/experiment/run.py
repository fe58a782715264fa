"""Command `a2 run`: all stages of an experiment."""

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.output import print_status
from a2cap.pipeline.cli.run_stages import run_stages


@click.command()
@experiment_options(distributed=True)
@click.option(
    "--until",
    type=click.Choice(["extract", "preprocess", "train", "evaluate"]),
    help="Stop after this stage.",
)
@click.option("--dry-run", is_flag=True, help="Print the stages that would run, and why.")
def run(options: ExperimentOptions, until: str | None, dry_run: bool) -> None:
    """Run all stages; skip those whose result exists.

    \b
    Example:
      a2 run -c configs/smoke.yaml --set data.images=coco/images \\
             --set data.annotations=coco/dataset_coco.json
    """
    with options.open() as experiment:
        # training ends with SCST if the experiment has it
        last = {"train": experiment.training[-1], None: "evaluate"}.get(until, until)
        names = experiment.names[: experiment.names.index(str(last)) + 1]
        if dry_run:
            print_status(experiment, names, explain=True)
        else:
            run_stages(experiment, names)
