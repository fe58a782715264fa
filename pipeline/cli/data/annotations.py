"""Command `a2 annotations`: what is read of captions in any form, and one form for all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click

from a2cap.data.annotations.caption import tokenize
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.annotations.layouts import LAYOUTS, require_annotations
from a2cap.data.annotations.read import Annotations, read_annotations
from a2cap.data.annotations.summary import doubts, summarize
from a2cap.data.data_config import FieldNames
from a2cap.data.files.atomic import replacing
from a2cap.data.image_ids import IdRule
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import FILE, PATH, log, verbose_option

_SHOWN = 10


@click.command(epilog=f"Forms: {'; '.join(layout.name for layout in LAYOUTS)}.")
@click.argument("source", type=PATH)
@click.option("--output", type=FILE, help="Write the captions into this file, one line per image.")
@click.option("--split", help="Random split of captions without splits: random(0.8/0.1/0.1, 1).")
@click.option("--split-list", type=PATH, help="Split of each image: a file, or a folder of lists.")
@click.option("--image-field", help="Field with the file name of the image.")
@click.option("--caption-field", help="Field with the caption, or a list of them.")
@click.option("--ids", type=click.Choice(get_args(IdRule)), default="number", help="As data.ids.")
@click.option("--turn", type=click.IntRange(1), default=1, help="Answer that is the caption.")
@verbose_option
def annotations(
    source: Path,
    output: Path | None,
    split: str | None,
    split_list: Path | None,
    image_field: str | None,
    caption_field: str | None,
    ids: IdRule,
    turn: int,
    verbose: bool,
) -> None:
    """Show what is read of captions; write JSON Lines.

    SOURCE is a file or folder of captions in any form. Prints images, captions, lengths and splits,
    and captions that may not be meant. The exit code is 3 if items were skipped.

    \b
    Example:
      a2 annotations chat.json --output captions.jsonl
      a2 annotations own.csv --image-field photo --caption-field title
    """
    log(verbose)
    names = FieldNames(image=image_field, caption=caption_field, turn=turn)
    path = require_annotations(source)
    read = read_annotations(path, split_list=split_list, split=split, rule=ids, fields=names)
    click.echo(summarize(read))
    for line in doubts(read):
        click.echo(f"warning: {line}")
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text("".join(_lines(read)), encoding="utf-8", newline="\n")
        click.echo(f"{output}: {len(read.images):,} images")
    for item in read.skipped[:_SHOWN]:
        click.echo(f"skipped {item.image_id}: {item.reason}", err=True)
    if read.skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _lines(annotations: Annotations) -> Iterator[str]:
    for image in annotations.images:
        row = {"image": image.file, "captions": _captions(image), "split": image.split}
        identity = {} if image.own_id is None else {"image_id": image.own_id}
        yield json.dumps(row | identity, ensure_ascii=False) + "\n"


def _captions(image: AnnotatedImage) -> list[object]:
    """Return the captions as text, with their tokens where those are not by Karpathy's rule."""
    return [
        c.raw if c.tokens == tokenize(c.raw) else {"raw": c.raw, "tokens": c.tokens}
        for c in image.captions
    ]
