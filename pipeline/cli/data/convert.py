"""Command `a2 convert`: region features in third-party formats."""

from pathlib import Path
from typing import Any

import click

from a2cap.data.box_check import ORDERS
from a2cap.data.features.formats.number_types import NUMBER_TYPES
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import PATH, log, verbose_option
from a2cap.pipeline.engine.lock import reading
from a2cap.pipeline.extraction.convert import FORMATS, skipped_file
from a2cap.pipeline.extraction.convert import convert as converted


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--to",
    "form",
    type=click.Choice(FORMATS),
    default="a2",
    show_default=True,
    help="Write this format.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Data type of an a2 feature store, tar or Parquet; the third-party formats use float32.",
)
@click.option(
    "--sizes",
    type=PATH,
    help="Read image sizes from this folder of images or COCO file; for layouts without them.",
)
@click.option(
    "--prefix", default="", help="Prefix of the number in LXMERT's image names: COCO_val2014_."
)
@click.option(
    "--boxes",
    "order",
    type=click.Choice(ORDERS),
    default="xyxy",
    show_default=True,
    help="Read the four numbers of a box of SOURCE as corners, or as another order.",
)
@click.option(
    "--source-dtype",
    "number_type",
    type=click.Choice(NUMBER_TYPES),
    default="float32",
    show_default=True,
    help="Read features that SOURCE has in base64 as this type, which TSV does not state.",
)
@verbose_option
def convert(source: Path, target: Path, verbose: bool, **options: Any) -> None:
    """Convert region features between formats.

    The layout of SOURCE, a file, a folder or a quoted pattern of several, is recognised by its
    content: TSV of caffe's bottom-up-attention or of LXMERT, npz, HDF5, LMDB, dictionaries of
    arrays and others that docs/guide/features.md lists, or a store, tar or Parquet of a2.
    Unreadable items are listed beside TARGET, and the exit code is then 3. Run the same command
    again to resume an interrupted conversion; a finished one is up to date.

    \b
    Example:
      a2 convert train2014_obj36.tsv features
      a2 convert features coco_detections.hdf5 --to m2
    """
    log(verbose)
    with reading(source):
        made = converted(source, target, **options)
    fewest, most = made.regions
    counts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    state = "" if made.ran else "up to date: "
    click.echo(
        f"{state}{made.count:,} images with {counts} regions of {made.width:,} numbers in {target}"
    )
    click.echo(f"content: {made.checksum}")
    if options["form"] == "a2":
        click.echo(
            f"next: a2 run -c configs/a2-from-features.yaml --set data.features={target} "
            "--set data.annotations=dataset_coco.json"
        )
    if made.skipped:
        listed = skipped_file(target)
        click.echo(f"a2: {len(made.skipped)} skipped, listed in {listed}", err=True)
        raise click.exceptions.Exit(EXIT_SKIPPED)
