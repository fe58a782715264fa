"""Command `a2 caption`: captions of image files."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import Any

import click

from a2cap.data.errors import A2Error
from a2cap.pipeline.captioning.adapted.pretrained import default_prompt
from a2cap.pipeline.captioning.caption_images import caption_files
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.named_images import (
    STANDARD_INPUT,
    NamedImage,
    may_be_many,
    named_images,
)
from a2cap.pipeline.captioning.outputs.output import CaptionOutput, UnwritableError, identity
from a2cap.pipeline.cli.caption_lines import OF_THE_IMAGE, CaptionCounts, CaptionLines
from a2cap.pipeline.cli.caption_options import (
    FigureOptions,
    OutputOptions,
    figure_options,
    output_options,
)
from a2cap.pipeline.cli.commands import RestartedWithoutOutput
from a2cap.pipeline.cli.decoding_options import decoding_options, model_option
from a2cap.pipeline.cli.options import FILE, PATH, require_existing
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.lock import read_lock
from a2cap.pipeline.engine.progress import advance_after_each, track
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.weights.captioners import captioner_name


@click.command(cls=RestartedWithoutOutput)
@click.argument("images", nargs=-1, required=True, type=PATH)
@model_option
@click.option(
    "--boxes",
    type=FILE,
    help="Read boxes from this COCO instances file, for a captioner trained on given boxes. The "
    "path of each image must end in its file name there.",
)
@click.option(
    "--beams",
    type=click.IntRange(min=1),
    help="Print the top N captions of each image with log-probabilities; raises --beam-size to N.",
)
@output_options
@figure_options
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Decode up to N images together; 1 prints each caption before the next image is read.",
)
@decoding_options
def caption(
    images: tuple[Path, ...],
    models: tuple[Path, ...],
    boxes: Path | None,
    beams: int | None,
    output: OutputOptions,
    drawing: FigureOptions,
    batch_size: int,
    config: Config,
) -> None:
    """Caption image files with a trained captioner.

    IMAGES are files, folders, or - for paths on standard input, one per line. Unreadable images are
    reported and skipped; the exit code is then 3. With --output, the same command run again
    captions new images and those that could not be read. Sidecars that a2 did not write, or that a
    person has edited, are kept; a hidden file in each folder lists those of a2.

    A line of --json has image (the path), model, settings (those of decoding that you set, if any),
    caption, score (log-probability), beams (captions and log-probabilities, the chosen one first),
    width and height in pixels, and boxes, the regions in pixels as [x1, y1, x2, y2].

    \b
    Example:
      a2 caption dog.jpg --figure dog.png
      a2 caption holidays --output holidays.jsonl
      a2 caption holidays --output sidecars --prefix "a photo of sks, "
      a2 caption dog.jpg holidays --model artifacts/train-xe/0123456789ab --beams 3
    """
    models = find_trainings(models)
    require_existing({"--model": models, "--boxes": [boxes]})
    # without standard input, as of some services, there are no lines
    queue = named_images(images, () if sys.stdin is None else sys.stdin.buffer)
    # rejects a wrong path before a model is loaded
    write = drawing.writer(models, boxes, config, many=may_be_many(images))
    config = _with_prompt(config, models)
    lines = CaptionLines(captioner_name(models), beams, output.prefix, output.suffix, config)
    written, counts = output.open(lines), CaptionCounts(output.path)
    if output.path is not None:
        queue = _missing(queue, written, counts)
    with written, read_lock(*models):
        # all images are counted before a captioner is loaded, unless their names are still to come
        is_counted = output.path is not None and STANDARD_INPUT not in images
        captioned = _captioned(
            list(queue) if is_counted else queue,
            models=models,
            boxes=boxes,
            decoding=config.evaluate,
            runtime=config.runtime,
            least_beams=beams or 1,
            batch_size=batch_size,
            attention=write is not None,
            # captions on standard output show the progress themselves
            is_shown=output.path is not None,
        )
        _emit_all(captioned, lambda *image: written.write(*lines.of(*image)), write, counts)
    counts.finish(has_figures=write is not None)


def _captioned(
    queue: Iterable[NamedImage], *, is_shown: bool, **how: Any
) -> Iterator[tuple[NamedImage, CaptionedImage | A2Error]]:
    """Caption images, if there are any; how: of `caption_files`."""
    total, rest = length_hint(queue), iter(queue)
    if (first := next(rest, None)) is not None:
        # loads the captioner, which is no time of an image
        captioned = caption_files(chain([first], rest), **how)
        if is_shown:
            with track("caption", total=total, unit="images") as bar:
                yield from advance_after_each(captioned, bar.advance)
        else:
            yield from captioned


def _with_prompt(config: Config, models: Sequence[Path]) -> Config:
    """State the prompt that a model of transformers has by default: lines of captions have it."""
    prompt = default_prompt(models) if config.evaluate.prompt is None else None
    if prompt is None:
        return config
    decoding = config.evaluate.model_copy(update={"prompt": prompt})
    return config.model_copy(update={"evaluate": decoding})


def _emit_all(
    captioned: Iterable[tuple[NamedImage, CaptionedImage | A2Error]],
    emit: Callable[[NamedImage, CaptionedImage], bool],
    draw: Callable[[NamedImage, CaptionedImage], Path] | None,
    counts: CaptionCounts,
) -> None:
    """Emit and draw each captioned image, and count them."""
    for image, result in captioned:
        if isinstance(result, A2Error):
            counts.fail(image.path, result)
            continue
        try:
            # first: an image with a line is not captioned again, and would have no figure
            drawn = None if draw is None else draw(image, result)
            is_written = emit(image, result)
        except (OSError, UnwritableError) as error:
            if isinstance(error, OSError) and error.errno not in OF_THE_IMAGE:
                raise
            counts.fail(image.path, error)
            continue
        counts.captioned += is_written
        counts.foreign += not is_written
        if drawn is not None:
            # standard output has the captions alone
            click.echo(f"figure: {drawn}", err=True)


def _missing(
    queue: Iterable[NamedImage], written: CaptionOutput, counts: CaptionCounts
) -> Iterator[NamedImage]:
    """Yield each image once that has no caption; count the others."""
    seen = set()
    for image in queue:
        if (same := identity(image.path)) in seen:
            continue
        seen.add(same)
        try:
            state = written.state(image.path)
        except UnwritableError as error:
            counts.fail(image.path, error)
            continue
        counts.done += state == "done"
        counts.foreign += state == "foreign"
        if state == "missing":
            yield image
