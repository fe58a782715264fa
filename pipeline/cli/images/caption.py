"""Command `a2 caption`: captions of image files."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import get_args

import click

from a2cap.data.errors import A2Error
from a2cap.pipeline.captioning.adapted.pretrained import default_prompt
from a2cap.pipeline.captioning.caption_images import attention_by, caption_files
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.captioning_config import ANIMATED, Style
from a2cap.pipeline.captioning.named_images import (
    STANDARD_INPUT,
    NamedImage,
    may_be_many,
    named_images,
)
from a2cap.pipeline.captioning.outputs.output import (
    CaptionOutput,
    Origin,
    UnwritableError,
    identity,
)
from a2cap.pipeline.cli.caption_lines import OF_THE_IMAGE, CaptionLines, Printed, Tally, open_output
from a2cap.pipeline.cli.decoding_options import decoding_options, model_option
from a2cap.pipeline.cli.options import FILE, PATH, require_existing
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.lock import read_lock
from a2cap.pipeline.engine.progress import advance_after_each, track
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.weights.captioners import captioner_name

_LABEL = 30  # characters of a captioner's name beside a row of panels


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
    help="Write the lines of --json into FILE.jsonl or FILE.parquet, image and caption into "
    "FILE.csv, or, with the word sidecars, each caption into NAME.txt beside its image. Images "
    "that have one are skipped.",
)
@click.option(
    "--force", is_flag=True, help="With --output, caption all images again and replace the lines."
)
@click.option(
    "--replace-foreign",
    is_flag=True,
    help="With --output, also replace texts and CSV files that a2 did not write, or that were "
    "edited since.",
)
@click.option(
    "--sidecar-suffix", metavar=".SUFFIX", help="Write sidecars NAME.SUFFIX in place of NAME.txt."
)
@click.option("--prefix", default="", help="Begin each caption with this text, its space included.")
@click.option("--suffix", default="", help="End each caption with this text, its space included.")
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
    replace_foreign: bool,
    sidecar_suffix: str | None,
    prefix: str,
    suffix: str,
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
    _require_companions(figure=figure, layer=layer, head=head)
    _require_output(output, force=force, replace=replace_foreign, sidecars=sidecar_suffix)
    _require_figure(figure, style=figure_style, below=figure_below, layer=layer)
    models = find_trainings(models)
    require_existing({"--model": models, "--boxes": [boxes]})
    # without standard input, as of some services, there are no lines
    named = named_images(images, () if sys.stdin is None else sys.stdin.buffer)
    # rejects a wrong path before a model is loaded
    write = _figure_writer(
        figure,
        many=may_be_many(images),
        layer=layer,
        head=head,
        style=figure_style or "panels",
        below=_second_captioner(figure_below, boxes, config),
        names=(_label(models), "" if figure_below is None else _label([figure_below])),
    )
    config = _with_prompt(config, models)
    lines = CaptionLines(captioner_name(models), beams, prefix, suffix, config)
    tally = Tally(output)
    with ExitStack() as files:
        if output is None:
            written: CaptionOutput = Printed(beams, as_json=as_json)
        else:
            written = open_output(
                output,
                Origin(lines.model, lines.settings),
                force=force,
                replace_foreign=replace_foreign,
                sidecar_suffix=sidecar_suffix,
            )
            named = _missing(named, written, tally)
        files.enter_context(written)
        files.enter_context(read_lock(*models))
        # all images are counted before a captioner is loaded, unless their names are still to come
        is_counted = output is not None and STANDARD_INPUT not in images
        rest = iter(list(named) if is_counted else named)
        if (first := next(rest, None)) is not None:
            captioned = caption_files(
                chain([first], rest),
                models=models,
                boxes=boxes,
                decoding=config.evaluate,
                runtime=config.runtime,
                least_beams=beams or 1,
                batch_size=batch_size,
                attention=write is not None,
            )
            if output is not None:  # captions on standard output show the progress themselves
                total = 1 + length_hint(rest) if is_counted else 0
                bar = files.enter_context(track("caption", total=total, unit="images"))
                captioned = advance_after_each(captioned, bar.advance)
            _emit_all(captioned, lambda *image: written.write(*lines.of(*image)), write, tally)
    tally.finish(has_figures=figure is not None)


def _with_prompt(config: Config, models: Sequence[Path]) -> Config:
    """State the prompt that a model of transformers has by default: lines of captions have it."""
    prompt = default_prompt(models) if config.evaluate.prompt is None else None
    if prompt is None:
        return config
    decoding = config.evaluate.model_copy(update={"prompt": prompt})
    return config.model_copy(update={"evaluate": decoding})


def _require_companions(*, figure: Path | None, layer: int | None, head: int | None) -> None:
    """Raise UsageError if --layer or --head lacks the option that it needs."""
    if (layer and not figure) or (head and not layer):
        raise click.UsageError("--layer needs --figure, and --head needs --layer; add the option")


def _require_output(
    output: Path | None, *, force: bool, replace: bool, sidecars: str | None
) -> None:
    """Raise UsageError if an option of --output is set without it."""
    options = {"--force": force, "--replace-foreign": replace, "--sidecar-suffix": sidecars}
    if output is None and (used := [name for name, value in options.items() if value]):
        raise click.UsageError(f"{used[0]} needs --output; add the option")


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


def _label(models: Sequence[Path]) -> str:
    """Return the name of a captioner, or the end of its path, as the label of a row."""
    name = captioner_name(models)
    return name if len(name) <= _LABEL else f"…{name[-_LABEL:]}"


def _emit_all(
    captioned: Iterable[tuple[NamedImage, CaptionedImage | A2Error]],
    emit: Callable[[NamedImage, CaptionedImage], bool],
    draw: Callable[[NamedImage, CaptionedImage], Path] | None,
    tally: Tally,
) -> None:
    """Emit and draw each captioned image, and count them."""
    for image, found in captioned:
        if isinstance(found, A2Error):
            tally.fail(image.path, found)
            continue
        try:
            # first: an image with a line is not captioned again, and would have no figure
            drawn = None if draw is None else draw(image, found)
            is_written = emit(image, found)
        except (OSError, UnwritableError) as error:
            if isinstance(error, OSError) and error.errno not in OF_THE_IMAGE:
                raise
            tally.fail(image.path, error)
            continue
        tally.captioned += is_written
        tally.foreign += not is_written
        if drawn is not None:
            # standard output has the captions alone
            click.echo(f"figure: {drawn}", err=True)


def _missing(
    named: Iterable[NamedImage], written: CaptionOutput, tally: Tally
) -> Iterator[NamedImage]:
    """Yield each image once that has no caption; count the others."""
    seen = set()
    for image in named:
        if (same := identity(image.path)) in seen:
            continue
        seen.add(same)
        try:
            state = written.state(image.path)
        except UnwritableError as error:
            tally.fail(image.path, error)
            continue
        tally.done += state == "done"
        tally.foreign += state == "foreign"
        if state == "missing":
            yield image


def _figure_writer(
    figure: Path | None,
    *,
    many: bool,
    layer: int | None,
    head: int | None,
    style: Style,
    below: Callable[[NamedImage, CaptionedImage], CaptionedImage] | None,
    names: tuple[str, str],
) -> Callable[[NamedImage, CaptionedImage], Path] | None:
    """Return the function that writes the figure of one image and returns its path, if asked."""
    if figure is None:
        return None
    from a2cap.pipeline.captioning.attention_figure import FigurePaths, write_figure

    paths = FigurePaths(figure, many=many)

    def write(image: NamedImage, found: CaptionedImage) -> Path:
        path = paths.for_image(image)
        second = None if below is None else below(image, found)
        write_figure(
            path, image, found, layer=layer, head=head, style=style, below=second, names=names
        )
        return path

    return write
