"""Command `a2 extract`: region features of images."""

import os
from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import (
    FOLDER,
    PATH,
    ExperimentOptions,
    experiment_options,
    force_option,
)
from a2cap.pipeline.cli.output import print_shard
from a2cap.pipeline.cli.run_stages import run_stages
from a2cap.pipeline.config import override
from a2cap.pipeline.doctor.preflight import require_runnable
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction.cluster import shard_of


@click.command()
@experiment_options()
@force_option
@click.option(
    "--images",
    type=FOLDER,
    help="Extract this folder of images, without an experiment; needs --output.",
)
@click.option(
    "--output",
    type=PATH,
    help="Write the store and the extractor of --images into this new folder.",
)
@click.option(
    "--shard",
    metavar="i/N",
    help="Extract part i of N (0/4 to 3/4), one process per part; auto: take i and N from a Slurm "
    "job array 0-(N-1) or torchrun. The last process to finish joins the parts.",
)
def extract(
    options: ExperimentOptions,
    force: bool,
    images: Path | None,
    output: Path | None,
    shard: str | None,
) -> None:
    """Extract region features of images into a store.

    \b
    Example:
      a2 extract --images my-images --output my-features \\
                 --set extract.weights=faster_rcnn_from_caffe_attr.pkl
    """
    if (images is None) != (output is None):
        raise click.UsageError("--images and --output belong together; name both or neither")
    folder: tuple[str, ...] = ()
    if images is not None:  # all of the folder's images, not those of an annotation file
        unset = ("data.annotations=null", "data.features=null")
        folder = (override("data.images", images), *unset)
    with options.open(*folder) as experiment:
        if shard is None:
            run_stages(experiment, ["extract"], force=force, output=output)
        else:
            _run_shard(experiment, shard, force=force, output=output)


def _run_shard(experiment: Experiment, named: str, *, force: bool, output: Path | None) -> None:
    shard = shard_of(named, os.environ)
    require_runnable(experiment, ["extract"], force=force, output=output)
    outcome = experiment.run_shard(shard, force=force, output=output)
    print_shard(outcome)
    if outcome.skipped or (outcome.stage and outcome.stage.manifest.skipped):
        raise click.exceptions.Exit(EXIT_SKIPPED)
