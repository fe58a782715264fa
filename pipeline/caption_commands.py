"""The commands that give captions away: of single pictures, and for COCO's evaluation server."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2.data.errors import A2Error
from a2.pipeline.command_group import EXIT_SKIPPED, log, verbose_option

if TYPE_CHECKING:
    from a2.pipeline.captioning import Captioned
    from a2.pipeline.named_pictures import NamedPicture

    _Draw = Callable[[NamedPicture, Captioned], None]

device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."
)


@click.command()
@click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model",
    "models",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of a trained captioner; several are an ensemble.",
)
@click.option(
    "--boxes",
    type=click.Path(path_type=Path, dir_okay=False),
    help="COCO instances file; needed by a captioner that was trained on given boxes. A picture's "
    "path must end in its name there.",
)
@click.option("--beam-size", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--beams",
    type=click.IntRange(min=1),
    help="Prints so many captions of each picture, with log-probabilities; widens --beam-size.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per picture and line.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Draws where each word looked: FILE.png (.jpg, .webp, .pdf, .svg) of one picture, or a "
    "folder that gets NAME.png of each.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Most pictures that are decoded together; 1 answers each before the next is read.",
)
@device_option
@verbose_option
def caption(
    pictures: tuple[Path, ...],
    models: tuple[Path, ...],
    boxes: Path | None,
    beam_size: int,
    beams: int | None,
    as_json: bool,
    figure: Path | None,
    batch_size: int,
    device: str,
    verbose: bool,
) -> None:
    """Captions of your own pictures, from the file to the words, as they come.

    PICTURES are files, folders of them, or - for paths on standard input, one per line. What cannot
    be read is named and passed over; the exit code is then 3.

    A line of --json has image (the path), caption, score (log-probability), beams (caption and
    score, best first), width and height in pixels, and boxes, the regions that the captioner was
    given, as [x1, y1, x2, y2] in pixels.

    \b
    Example:
      a2 caption dog.jpg holidays --model artifacts/train-xe/0123456789ab --beams 3
      a2 caption dog.jpg --model artifacts/train-xe/0123456789ab --figure dog.png
    """
    from a2.pipeline.captioning import caption_files
    from a2.pipeline.named_pictures import may_be_many, named_pictures

    log(verbose)
    named = named_pictures(pictures, sys.stdin.buffer)
    draw: _Draw | None = _drawing(figure, many=may_be_many(pictures)) if figure else None
    failed = False
    for picture, found in caption_files(
        named,
        models=models,
        boxes=boxes,
        beam_size=max(beam_size, beams or 1),
        device=device,
        batch_size=batch_size,
        attention=draw is not None,
    ):
        if isinstance(found, A2Error):
            failed = True
            click.echo(f"a2: skipped {str(picture.path)!r}: {found}", err=True)
            continue
        click.echo(_line(picture.path, found, beams, as_json=as_json))
        if draw is not None:
            draw(picture, found)
    if failed:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _drawing(place: Path, *, many: bool) -> "_Draw":
    from a2.pipeline.attention_figure import FigurePlaces, write_figure

    places = FigurePlaces(place, many=many)
    return lambda picture, found: write_figure(places.of(picture.path), picture, found)


def _line(path: Path, found: "Captioned", beams: int | None, *, as_json: bool) -> str:
    """What is printed of a picture; in JSON all is ASCII, which any terminal and locale takes."""
    shown = found.beams[:beams]
    if as_json:
        return json.dumps(
            {
                "image": str(path),
                "caption": shown[0].caption,
                "score": shown[0].score,
                "beams": [{"caption": beam.caption, "score": beam.score} for beam in shown],
                "width": found.regions.width,
                "height": found.regions.height,
                "boxes": found.regions.boxes.astype(float).round(1).tolist(),
            }
        )
    lines = [f"{click.format_filename(path)}: {shown[0].caption}"]
    if beams is not None:
        lines += [f"{beam.score:>10.4f}  {beam.caption}" for beam in shown]
    return "\n".join(lines)


CAPTIONING = (caption,)
"""The commands of this module, in the order of their names."""
