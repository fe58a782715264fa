"""Command `a2 extract`: region features of images."""

import os
from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import PATH, force_option
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.run_stages import run_stages
from a2cap.pipeline.configuration import override
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.plan import require_runnable


@click.command()
@experiment_options()
@force_option
@click.option(
    "--images",
    type=PATH,
    help="Extract this folder, list, tars or Parquet files, without an experiment; needs --output.",
)
@click.option(
    "--output",
    type=PATH,
    help="Write the store and the extractor of --images into this new folder.",
)
@click.option(
    "--shard",
    metavar="i/N",
    help="Extract every N-th shard of 1,024 images from the i-th on (0/4 to 3/4), one process per "
    "stripe; auto: take i and N from a Slurm job array 0-(N-1) or torchrun. The process that finds "
    "all shards done publishes the result.",
)
@click.option(
    "--engine", type=click.Choice(["ray"]), help="Run the shards as tasks on a Ray cluster."
)
@click.option(
    "--address", help="Address of the Ray cluster, RAY_ADDRESS without it, or else this machine."
)
def extract(
    options: ExperimentOptions,
    force: bool,
    images: Path | None,
    output: Path | None,
    shard: str | None,
    engine: str | None,
    address: str | None,
) -> None:
    """Extract region features of images into a store.

    \b
    Example:
      a2 extract --images my-images --output my-features \\
                 --set extract.weights=faster_rcnn_from_caffe_attr.pkl
    """
    if (images is None) != (output is None):
        raise click.UsageError("--images and --output belong together; name both or neither")
    if engine is None and address is not None:
        raise click.UsageError("--address belongs to --engine ray; name it, or leave --address out")
    if shard is not None and (force or engine is not None):
        option = "--force" if force else "--engine"
        raise click.UsageError(f"{option} does not go with --shard; leave one of them out")
    settings: list[str] = []
    if images is not None:  # all of them, not those of an annotation file
        unset = ("data.annotations=null", "data.features=null")
        settings += [override("data.images", images), *unset]
    if engine is not None:
        settings.append(override("runtime.ray", address or "auto"))
    with options.open(*settings) as experiment:
        if shard is None:
            run_stages(experiment, ["extract"], force=force, output=output)
        else:
            _run_stripe(experiment, Stripe.parse(shard, os.environ), output=output)


def _run_stripe(experiment: Experiment, stripe: Stripe, *, output: Path | None) -> None:
    require_runnable(experiment, ["extract"], output=output)
    outcome = experiment.run_stripe(stripe, output=output)
    if outcome.stage is None:
        left = f"{outcome.missing} shards of others are missing"
        click.echo(f"extract: stripe {outcome.stripe} done, {left}")
        return
    print_outcome("extract", outcome.stage)
    if outcome.stage.manifest.skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)
