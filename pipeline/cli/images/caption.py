"""Command `a2 caption`: captions of image files."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import get_args

import click

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.paths import did_you_mean
from a2cap.data.image_ids import list_images
from a2cap.pipeline.captioning.caption_images import CaptionedImage, attention_by, caption_files
from a2cap.pipeline.captioning.caption_output import CaptionOutput, caption_line, caption_output
from a2cap.pipeline.captioning.captioning_config import ANIMATED, Style
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.decoding_options import decoding_options, model_option
from a2cap.pipeline.cli.options import FILE, PATH, require_existing
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.lock import reading
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.weights.captioners import captioner_name

_NEAR_NAMES = 5  # missing images for which one is searched: it reads their folder
_STANDARD_INPUT = Path("-")
_ADDRESS = re.compile("https?:/", re.IGNORECASE)  # a path joins the two slashes


@click.command()
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
@click.option(
    "--output",
    type=PATH,
    help="Write the lines of --json into FILE.jsonl or FILE.parquet, or, with the word sidecars, "
    "each caption into NAME.txt beside its image. Images that have one are skipped.",
)
@click.option(
    "--force", is_flag=True, help="With --output, caption all images again and replace the lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and image.")
@click.option(
    "--figure",
    type=PATH,
    help="Draw the attention of each token: FILE.png (.jpg, .webp, .pdf, .svg) for one image, "
    "FILE.gif for an animation, or a folder for NAME.png of each image.",
)
@click.option(
    "--figure-style",
    type=click.Choice(get_args(Style)),
    help="panels: original and aligned attention of each word (default); boxes: the region with "
    "the most attention before alignment in blue, after it in red.",
)
@click.option(
    "--figure-below",
    type=PATH,
    help="Draw this captioner's attention to the same caption in a second row, such as hard below "
    "soft attention.",
)
@click.option(
    "--layer", type=click.IntRange(min=1), help="Draw this decoder layer, not the mean over all."
)
@click.option("--head", type=click.IntRange(min=1), help="Draw this head of --layer, not the mean.")
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
    output: Path | None,
    force: bool,
    as_json: bool,
    figure: Path | None,
    figure_style: Style | None,
    figure_below: Path | None,
    layer: int | None,
    head: int | None,
    batch_size: int,
    config: Config,
) -> None:
    """Caption image files with a trained captioner.

    IMAGES are files, folders, or - for paths on standard input, one per line. Unreadable images are
    reported and skipped; the exit code is then 3. With --output, the same command run again
    captions new images and those that could not be read.

    A line of --json has image (the path), model, settings (those of decoding that you set, if any),
    caption, score (log-probability), beams (captions and log-probabilities, the chosen one first),
    width and height in pixels, and boxes, the regions in pixels as [x1, y1, x2, y2].

    \b
    Example:
      a2 caption dog.jpg --figure dog.png
      a2 caption holidays --output holidays.jsonl
      a2 caption dog.jpg holidays --model artifacts/train-xe/0123456789ab --beams 3
    """
    _require_companions(figure=figure, layer=layer, head=head, output=output, force=force)
    _require_figure(figure, style=figure_style, below=figure_below, layer=layer)
    models = find_trainings(models)
    require_existing({"--model": models, "--boxes": [boxes]})
    # without standard input, as of some services, there are no lines
    named = _named_images(images, () if sys.stdin is None else sys.stdin.buffer)
    # rejects a wrong path before a model is loaded
    write = _figure_writer(
        figure,
        many=_may_be_many(images),
        layer=layer,
        head=head,
        style=figure_style or "panels",
        below=_second_captioner(figure_below, boxes, config),
    )
    with ExitStack() as files:
        model, settings = captioner_name(models), _settings(config, beams)
        written = None
        known: set[Path] = set()
        if output is not None:
            written = files.enter_context(
                caption_output(output, model=model, settings=settings, force=force)
            )
        files.enter_context(reading(*models))
        captioned = caption_files(
            named if written is None else _missing(named, written, known),
            models=models,
            boxes=boxes,
            decoding=config.evaluate,
            runtime=config.runtime,
            least_beams=beams or 1,
            batch_size=batch_size,
            attention=write is not None,
        )

        def emit(image: NamedImage, found: CaptionedImage) -> None:
            line = caption_line(str(image.path), found, model, beams, settings)
            if written is not None:
                written.write(image.path, line)
            else:
                click.echo(json.dumps(line) if as_json else _text(image.path, found, beams))

        done, failed = _emit_all(captioned, emit, write)
    _finish(output, done, failed, without_figure=len(known) if figure else 0)


def _require_companions(
    *, figure: Path | None, layer: int | None, head: int | None, output: Path | None, force: bool
) -> None:
    """Raise UsageError if --layer, --head or --force lacks the option that it needs."""
    if (layer and not figure) or (head and not layer):
        raise click.UsageError("--layer needs --figure, and --head needs --layer; add the option")
    if force and output is None:
        raise click.UsageError("--force needs --output; add the option")


def _require_figure(
    figure: Path | None, *, style: str | None, below: Path | None, layer: int | None
) -> None:
    """Raise UsageError if --figure-style or --figure-below has no figure that it applies to."""
    option = "--figure-style" if style else "--figure-below"
    if not (style or below):
        return
    if figure is None:
        raise click.UsageError(f"{option} needs --figure; add the option")
    if figure.suffix.lower() == ANIMATED:
        raise click.UsageError(
            f"{option} does not apply to an animation: {str(figure)!r}; use .png"
        )
    if below and (layer or style == "boxes"):
        other = "--layer" if layer else "--figure-style boxes"
        raise click.UsageError(f"--figure-below draws panels of the mean: leave {other} out")


def _second_captioner(
    model: Path | None, boxes: Path | None, config: Config
) -> Callable[[NamedImage, CaptionedImage], CaptionedImage] | None:
    """Load the captioner of --figure-below."""
    if model is None:
        return None
    models = find_trainings([model])
    require_existing({"--figure-below": models})
    return attention_by(models, boxes=boxes, decoding=config.evaluate, runtime=config.runtime)


def _emit_all(
    captioned: Iterable[tuple[NamedImage, CaptionedImage | A2Error]],
    emit: Callable[[NamedImage, CaptionedImage], None],
    draw: Callable[[NamedImage, CaptionedImage], Path] | None,
) -> tuple[int, int]:
    """Emit and draw each captioned image; return how many were captioned and how many failed."""
    done = failed = 0
    for image, found in captioned:
        if isinstance(found, A2Error):
            failed += 1
            near = did_you_mean(image.path) if failed <= _NEAR_NAMES else ""
            click.echo(f"a2: skipped {str(image.path)!r}: {found}{near}", err=True)
            continue
        done += 1
        # first: an image with a line is not captioned again, and would have no figure
        drawn = None if draw is None else draw(image, found)
        emit(image, found)
        if drawn is not None:
            # standard output has the captions alone
            click.echo(f"figure: {drawn}", err=True)
    return done, failed


def _settings(config: Config, beams: int | None) -> str:
    """Return the settings of decoding that the user set, which enter the lines of captions."""
    decoding = config.evaluate
    chosen = sorted(f"{name}={getattr(decoding, name)}" for name in decoding.model_fields_set)
    return " ".join([*chosen, f"beams={beams}"] if beams else chosen)


def _finish(output: Path | None, done: int, failed: int, *, without_figure: int) -> None:
    """Report what was written to `output`; exit with 3 if images failed."""
    if without_figure:
        click.echo(
            f"a2: no figure of {without_figure:,} images that had captions; add --force to caption "
            "and draw them again",
            err=True,
        )
    if output is not None:
        again = "; run the same command again to retry them" if failed else ""
        click.echo(f"{output}: {done:,} new captions, {failed:,} images failed{again}", err=True)
    if failed:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _named_images(
    arguments: Sequence[Path], standard_input: Iterable[bytes]
) -> Iterator[NamedImage]:
    """Yield the named images in order, duplicates included.

    A folder yields the images below it, sorted by path. `-` yields one image per line of standard
    input, read lazily. Raises InputError immediately for a folder without images, and for a
    standard input with a NUL or without a path.
    """
    if arguments.count(_STANDARD_INPUT) > 1:
        raise InputError("standard input is named twice, as '-'; name it once")
    # a list, so that a folder without images is an error before any caption
    sources = [_source(argument, standard_input) for argument in arguments]
    return chain.from_iterable(sources)


def _missing(
    named: Iterable[NamedImage], written: CaptionOutput, known: set[Path]
) -> Iterator[NamedImage]:
    """Yield each image once, without those that have been captioned, which are added to `known`."""
    seen = set()
    for image in named:
        if image.path in seen or image.path in known:
            continue
        if written.has(image.path):
            known.add(image.path)
        else:
            seen.add(image.path)
            yield image


def _may_be_many(arguments: Sequence[Path]) -> bool:
    """Return True unless the arguments name exactly one image."""
    return len(arguments) != 1 or arguments[0] == _STANDARD_INPUT or arguments[0].is_dir()


def _source(argument: Path, standard_input: Iterable[bytes]) -> Iterable[NamedImage]:
    if argument == _STANDARD_INPUT:
        return _lines(standard_input)
    if _ADDRESS.match(str(argument)):
        raise InputError(f"{str(argument)!r} is a web address; download the image first")
    if argument.is_dir():
        return [NamedImage(argument / inside, inside) for inside in list_images(argument)]
    return [NamedImage(argument)]


def _lines(standard_input: Iterable[bytes]) -> Iterator[NamedImage]:
    named = False
    for line in standard_input:
        # not stripped: a name may begin or end with spaces, and is not always UTF-8
        name = line.removesuffix(b"\n").removesuffix(b"\r")
        if b"\0" in name:
            raise InputError(
                f"standard input has a NUL: {name[:20]!r}, as an image or find -print0; "
                "write one path per line"
            )
        if name:
            named = True
            yield NamedImage(Path(os.fsdecode(name)))
    if not named:
        raise InputError("no images on standard input; write one path per line")


def _figure_writer(
    figure: Path | None,
    *,
    many: bool,
    layer: int | None,
    head: int | None,
    style: Style,
    below: Callable[[NamedImage, CaptionedImage], CaptionedImage] | None,
) -> Callable[[NamedImage, CaptionedImage], Path] | None:
    """Return the function that writes the figure of one image and returns its path, if asked."""
    if figure is None:
        return None
    from a2cap.pipeline.captioning.attention_figure import FigurePaths, write_figure

    paths = FigurePaths(figure, many=many)

    def write(image: NamedImage, found: CaptionedImage) -> Path:
        path = paths.for_image(image)
        second = None if below is None else below(image, found)
        write_figure(path, image, found, layer=layer, head=head, style=style, below=second)
        return path

    return write


def _text(path: Path, found: CaptionedImage, beams: int | None) -> str:
    """Format the captions of an image."""
    shown = found.beams[:beams]
    name = click.format_filename(path)
    # a line break would be a second line, an escape sequence would reach the terminal
    lines = [f"{name if name.isprintable() else repr(name)}: {shown[0].caption}"]
    if beams is not None:
        lines += [f"{beam.score:>10.4f}  {beam.caption}" for beam in shown]
    return "\n".join(lines)
