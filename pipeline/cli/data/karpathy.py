"""Command `a2 karpathy`: Karpathy's dataset_coco.json from official captions."""

from pathlib import Path

import click

from a2cap.data.annotations.karpathy_writer import write_karpathy
from a2cap.data.annotations.split_list import read_keys
from a2cap.pipeline.cli.commands import Restarted
from a2cap.pipeline.cli.options import FILE, log, verbose_option


@click.command(cls=Restarted)
@click.argument("captions", type=FILE, nargs=-1, required=True)
@click.option("--val", type=FILE, required=True, help="File of validation image ids, one per line.")
@click.option("--test", type=FILE, required=True, help="File of test image ids, one per line.")
@click.option("--output", type=FILE, required=True, help="Write the annotations into this file.")
@verbose_option
def karpathy(
    captions: tuple[Path, ...], val: Path, test: Path, output: Path, verbose: bool
) -> None:
    """Rebuild Karpathy's dataset_coco.json.

    CAPTIONS are COCO caption files. Images of train2014 are in split train; those of val2014 that
    are in neither list are in restval. Images, sentences and tokens have the order of the published
    file.

    \b
    Example:
      a2 karpathy captions_val2014.json captions_train2014.json --output dataset_coco.json \\
                  --val karpathy_val_images.txt --test karpathy_test_images.txt
    """
    log(verbose)
    counts = write_karpathy(captions, output, val=read_keys(val), test=read_keys(test))
    texts = counts.pop("captions")
    splits = ", ".join(f"{split} {count:,}" for split, count in sorted(counts.items()))
    click.echo(f"{output}: {counts.total():,} images ({splits}), {texts:,} captions")
