"""The command that reads and writes other projects' region features."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.pipeline.cli.options import EXIT_SKIPPED, log, verbose_option

if TYPE_CHECKING:
    from a2cap.data.features.record import FeatureType
    from a2cap.pipeline.extraction.convert import Format

FORMATS = ("a2", "caffe", "lxmert", "att-box", "milvlg", "m2")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(FORMATS),
    default="a2",
    show_default=True,
    help="What to write.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="How a store of ours keeps features; the other formats have float32.",
)
@click.option(
    "--sizes",
    type=click.Path(path_type=Path),
    help="Folder of the images, or a COCO file that lists their sizes: att-box and m2 have none.",
)
@click.option("--prefix", default="", help="Before the number in LXMERT's names: COCO_val2014_.")
@verbose_option
def convert(
    source: Path,
    target: Path,
    form: "Format",
    dtype: "FeatureType",
    sizes: Path | None,
    prefix: str,
    verbose: bool,
) -> None:
    """Region features from one project's format into another's.

    Reads, whatever the name: a feature store of ours, TSV of caffe's bottom-up-attention or of
    LXMERT, npz folders of ImageCaptioning.pytorch (att-box) or MILVLG, HDF5 of M2. What cannot be
    read is listed beside the target, and the exit code is then 3. The same command takes up an
    interrupted one.

    \b
    Example:
      a2 convert train2014_obj36.tsv features
      a2 convert features coco_detections.hdf5 --to m2
    """
    from a2cap.pipeline.extraction.convert import convert as converted
    from a2cap.pipeline.extraction.convert import skipped_file

    log(verbose)
    made = converted(source, target, form=form, dtype=dtype, sizes=sizes, prefix=prefix)
    fewest, most = made.regions
    click.echo(f"{made.count:,} images with {fewest} to {most} regions in {target}")
    click.echo(f"content: {made.checksum}")
    if made.skipped:
        click.echo(f"a2: {len(made.skipped)} could not be read: {skipped_file(target)}", err=True)
        raise click.exceptions.Exit(EXIT_SKIPPED)


CONVERSION = (convert,)
"""The commands of this module."""
