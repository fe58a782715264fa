"""Command `a2 preprocess`: captions to token ids."""

import click

from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.cli.options import force_option
from a2cap.pipeline.cli.run_stages import run_stages


@click.command()
@experiment_options()
@force_option
def preprocess(options: ExperimentOptions, force: bool) -> None:
    """Preprocess captions into token ids.

    Writes the vocabulary, token ids, reference tokens and document frequencies.

    \b
    Example:
      a2 preprocess -c configs/a2-gate.yaml --set data.annotations=coco/dataset_coco.json
    """
    with options.open() as experiment:
        run_stages(experiment, ["preprocess"], force=force)
