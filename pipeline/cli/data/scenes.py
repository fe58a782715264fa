"""Command `a2 scenes`: a synthetic data set in COCO's layout, without a download."""

import shlex
from pathlib import Path
from typing import Any

import click

from a2cap.data.scenes.captions import CAPTIONS_PER_SCENE
from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.cli.commands import Restarted
from a2cap.pipeline.cli.options import FOLDER, log, verbose_option
from a2cap.pipeline.configuration import override
from a2cap.pipeline.engine.progress import track


@click.command(cls=Restarted)
@click.argument("folder", type=FOLDER)
@click.option(
    "--count", type=int, required=True, help="Number of images: 80 % train, 10 % val, 10 % test."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the scenes.")
@click.option(
    "--side",
    type=int,
    default=160,
    show_default=True,
    metavar="PIXELS",
    help="Width and height of each image; it does not change the captions.",
)
@click.option(
    "--spurious",
    type=float,
    default=0.0,
    show_default=True,
    metavar="PROBABILITY",
    help="Probability that an object's companion category appears beside it, in train only.",
)
@verbose_option
def scenes(folder: Path, count: int, verbose: bool, **options: Any) -> None:
    """Draw a synthetic data set into a new FOLDER.

    Each image has five true captions of its known objects. FOLDER also gets Karpathy's
    dataset_coco.json, COCO's instances.json and captions.json, and grounding.json, the objects that
    each word refers to. Equal arguments give equal bytes.

    \b
    Example:
      a2 scenes scenes --count 20000
      a2 run -c configs/smoke.yaml --set data.images=scenes/images \\
             --set data.annotations=scenes/dataset_coco.json
    """
    log(verbose)
    with track("draw scenes", total=count) as progress:
        written = write_scenes(folder, count=count, progress=progress.advance, **options)
        if not written:
            progress.advance(count)  # else the terminal keeps an empty bar
    if not written:
        click.echo(f"nothing to do: {str(folder)!r} already contains these scenes")
    _print_contents(folder, count)


def _print_contents(folder: Path, count: int) -> None:
    click.echo(
        f"{folder}: {count:,} images (images), {CAPTIONS_PER_SCENE * count:,} captions "
        "(dataset_coco.json, captions.json), boxes and attributes (instances.json), "
        "objects of each word (grounding.json)"
    )
    fields = {"data.images": "images", "data.annotations": "dataset_coco.json"}
    settings = [f"--set {shlex.quote(override(f, folder / n))}" for f, n in fields.items()]
    click.echo(f"use: a2 run -c configs/smoke.yaml {' '.join(settings)}")
