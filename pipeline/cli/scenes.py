"""The command that draws scenes: a data set in COCO's layout that needs no download."""

import shlex
from pathlib import Path

import click

from a2cap.pipeline.cli.options import log, verbose_option


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", type=int, required=True, help="Images: 80 % train, 10 % val, 10 % test.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another one, other scenes.")
@click.option(
    "--side",
    type=int,
    default=160,
    show_default=True,
    metavar="PIXELS",
    help="Width and height of each image; captions do not depend on it.",
)
@click.option(
    "--spurious",
    type=float,
    default=0.0,
    show_default=True,
    metavar="PROBABILITY",
    help="Of a kind's companion among the clutter to stand beside it, in train alone.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that draw the same bytes; without it as many as there are cores.",
)
@verbose_option
def scenes(
    folder: Path,
    count: int,
    seed: int,
    side: int,
    spurious: float,
    workers: int | None,
    verbose: bool,
) -> None:
    """Draws images of known things with five true captions each into a new FOLDER.

    Beside the images lie Karpathy's dataset_coco.json, COCO's instances.json and captions.json,
    and grounding.json: which things each word is about. The same arguments give the same bytes.

    \b
    Example:
      a2 scenes scenes --count 20000
      a2 run -c configs/smoke.yaml --set data.images=scenes/images \\
             --set data.annotations=scenes/dataset_coco.json
    """
    from a2cap.data.scenes.generate import write_scenes
    from a2cap.pipeline.engine.progress import track

    log(verbose)
    with track("draw scenes", total=count) as progress:
        written = write_scenes(
            folder,
            count=count,
            seed=seed,
            side=side,
            spurious=spurious,
            workers=workers,
            progress=progress.advance,
        )
        if not written:
            progress.advance(count)  # or a terminal would keep a bar of nothing
    if not written:
        click.echo(f"nothing to do: {str(folder)!r} holds these scenes already")
    _say_contents(folder, count)


def _say_contents(folder: Path, count: int) -> None:
    from a2cap.data.scenes.captions import CAPTIONS_PER_SCENE
    from a2cap.pipeline.config import override

    click.echo(
        f"{folder}: {count:,} images (images), {CAPTIONS_PER_SCENE * count:,} captions "
        "(dataset_coco.json, captions.json), boxes and attributes (instances.json), "
        "the things of each word (grounding.json)"
    )
    fields = {"data.images": "images", "data.annotations": "dataset_coco.json"}
    settings = [f"--set {shlex.quote(override(f, folder / n))}" for f, n in fields.items()]
    click.echo(f"use: a2 run -c configs/smoke.yaml {' '.join(settings)}")
