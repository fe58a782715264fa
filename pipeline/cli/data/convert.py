"""Command `a2 convert`: region features in third-party formats."""

from pathlib import Path
from typing import Any

import click

from a2cap.data.box_check import ORDERS, BoxOrder
from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import NUMBER_TYPES, NumberType
from a2cap.data.features.formats.feature_source import ImageFeatures, ReadHints
from a2cap.data.features.formats.writers import FORMATS
from a2cap.data.features.relation_file import write_relations
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import PATH, log, verbose_option
from a2cap.pipeline.engine.lock import read_lock
from a2cap.pipeline.extraction.convert import convert as converted
from a2cap.pipeline.extraction.convert import skipped_file
from a2cap.pipeline.extraction.look import draw_boxes, look
from a2cap.pipeline.extraction.open_features import hints_with_sizes, open_features

RELATIONS = "relations"


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH, required=False)
@click.option(
    "--to",
    "form",
    type=click.Choice([*FORMATS, RELATIONS]),
    default="a2",
    show_default=True,
    help="Write this format; relations: only those of regions, as --relations reads them.",
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
@click.option(
    "--relations",
    type=PATH,
    help="Add the predicted relations of this JSON file to the regions, for gcn-lstm.",
)
@click.option(
    "--look",
    "is_look",
    is_flag=True,
    help="Summarise SOURCE and convert nothing: layout, counts, sizes and ranges.",
)
@click.option(
    "--image",
    "photograph",
    type=PATH,
    help="With --look: draw the boxes of this photograph, or of the first image in this folder, "
    "in the image file TARGET.",
)
@verbose_option
def convert(
    source: Path,
    target: Path | None,
    verbose: bool,
    is_look: bool,
    photograph: Path | None,
    order: BoxOrder,
    number_type: NumberType,
    **options: Any,
) -> None:
    """Convert region features between formats.

    The layout of SOURCE, a file, a folder or a quoted pattern of several, is recognised by its
    content: TSV of caffe's bottom-up-attention or of LXMERT, npz, HDF5, LMDB, dictionaries of
    arrays and others that docs/guide/features.md lists, or a store, tar or Parquet of a2.
    Unreadable items are listed beside TARGET, and the exit code is then 3. Run the same command
    again to resume an interrupted conversion; a finished one is up to date.

    \b
    Example:
      a2 convert train2014_obj36.tsv --look
      a2 convert train2014_obj36.tsv boxes.jpg --look --image train2014
      a2 convert train2014_obj36.tsv features
      a2 convert features coco_detections.hdf5 --to m2
    """
    log(verbose)
    hints = ReadHints(order=order, number_type=number_type)
    if is_look:
        _look(source, target, photograph, hints_with_sizes(options["sizes"], source, hints))
        return
    if target is None or photograph is not None:
        raise click.UsageError(
            "missing argument 'TARGET'" if target is None else "--image needs --look"
        )
    if options["form"] == RELATIONS:
        _write_relations(source, target, hints)
        return
    with read_lock(source):
        made = converted(source, target, hints=hints, **options)
    fewest, most = made.regions
    counts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    state = "" if made.ran else "up to date: "
    click.echo(
        f"{state}{made.count:,} images with {counts} regions of {made.width:,} numbers in {target}"
    )
    if options["relations"] is not None:
        click.echo(f"relations: {made.relations:,}")
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


def _write_relations(source: Path, target: Path, hints: ReadHints) -> None:
    if target.exists():
        raise InputError(f"{str(target)!r} already exists; name another path, or remove it")
    with read_lock(source):
        items = open_features(source, hints)
        images = ((i.image_id, i.regions) for i in items if isinstance(i, ImageFeatures))
        count = write_relations(target, images)
    click.echo(f"relations of {count:,} images in {target}")


def _look(source: Path, target: Path | None, photograph: Path | None, hints: ReadHints) -> None:
    if (target is None) != (photograph is None):
        raise click.UsageError("--image and TARGET, the file to draw, need each other with --look")
    for line in look(source, hints):
        click.echo(line)
    if target is not None and photograph is not None:
        click.echo(f"drawn: {draw_boxes(source, hints, photograph, target)}")
