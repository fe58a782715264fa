"""The commands that give captions away: of single images, and for COCO's evaluation server."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.data.errors import A2Error, ConfigError
from a2cap.pipeline.cli.options import EXIT_SKIPPED, force_option, log, set_option, verbose_option

if TYPE_CHECKING:
    from a2cap.pipeline.captioning.caption_images import CaptionedImage
    from a2cap.pipeline.captioning.named_image import NamedImage
    from a2cap.pipeline.config import Config

    _Draw = Callable[[NamedImage, CaptionedImage], None]

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)

_decoding_options = (
    click.option(
        "--beam-size", type=click.IntRange(min=1), help="Short for --set evaluate.beam_size=N."
    ),
    click.option("--device", help="Short for --set runtime.device=: auto, cpu, cuda or cuda:N."),
    set_option,
)

_COUNTING = (
    "beam_size",
    "diversity",
    "ensemble_average",
    "groups",
    "length_penalty",
    "max_length",
    "no_repeat_ngram",
)
"""The fields of `evaluate` by which captions are made."""


def decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of how captions are made."""
    for option in reversed(_decoding_options):
        command = option(command)
    return command


@click.command()
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    help="COCO instances file; needed by a captioner that was trained on given boxes. An image's "
    "path must end in its name there.",
)
@click.option(
    "--beams",
    type=click.IntRange(min=1),
    help="Prints so many captions of each image, with log-probabilities; widens --beam-size.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per image and line.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    help="Draws where each word looked: FILE.png (.jpg, .webp, .pdf, .svg) of one image, or a "
    "folder that gets NAME.png of each.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Most images that are decoded together; 1 answers each before the next is read.",
)
@decoding_options
@verbose_option
def caption(
    images: tuple[Path, ...],
    models: tuple[Path, ...],
    boxes: Path | None,
    beams: int | None,
    as_json: bool,
    figure: Path | None,
    batch_size: int,
    beam_size: int | None,
    device: str | None,
    overrides: tuple[str, ...],
    verbose: bool,
) -> None:
    """Captions of your own images, from the file to the words, as they come.

    IMAGES are files, folders of them, or - for paths on standard input, one per line. What cannot
    be read is named and passed over; the exit code is then 3.

    A line of --json has image (the path), caption, score (log-probability), beams (caption and
    score, best first), width and height in pixels, and boxes, the regions that the captioner was
    given, as [x1, y1, x2, y2] in pixels.

    \b
    Example:
      a2 caption dog.jpg holidays --model artifacts/train-xe/0123456789ab --beams 3
      a2 caption dog.jpg --model artifacts/train-xe/0123456789ab --figure dog.png
    """
    from a2cap.pipeline.captioning.caption_images import caption_files
    from a2cap.pipeline.cli.image_arguments import may_be_many, named_images

    log(verbose)
    config = _settings(overrides, beam_size=beam_size, device=device, at_least=beams or 1)
    named = named_images(images, sys.stdin.buffer)
    draw: _Draw | None = _drawing(figure, many=may_be_many(images)) if figure else None
    failed = False
    for image, found in caption_files(
        named,
        models=models,
        boxes=boxes,
        decoding=config.evaluate,
        runtime=config.runtime,
        batch_size=batch_size,
        attention=draw is not None,
    ):
        if isinstance(found, A2Error):
            failed = True
            click.echo(f"a2: skipped {str(image.path)!r}: {found}", err=True)
            continue
        click.echo(_line(image.path, found, beams, as_json=as_json))
        if draw is not None:
            draw(image, found)
    if failed:
        raise click.exceptions.Exit(EXIT_SKIPPED)


@click.command()
@click.option("--name", required=True, help="What the server will list; letters, digits, - and _.")
@click.option(
    "--val-info", required=True, type=_FILE, help="Names the images: captions_val2014.json."
)
@click.option("--test-info", required=True, type=_FILE, help="image_info_test2014.json.")
@click.option("--val-results", type=_FILE, help="Captions of val2014 in COCO results form.")
@click.option("--test-results", type=_FILE, help="Captions of test2014 in COCO results form.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=_FOLDER,
    help="Directory of a trained captioner, to caption both sets; several are an ensemble.",
)
@click.option(
    "--features",
    multiple=True,
    type=_FOLDER,
    help='A store of "a2 extract" with images of the sets; may be repeated.',
)
@decoding_options
@click.option("--output", type=_FILE, help="The archive.  [default: NAME.zip]")
@force_option
@verbose_option
def submit(
    name: str,
    val_info: Path,
    test_info: Path,
    val_results: Path | None,
    test_results: Path | None,
    models: tuple[Path, ...],
    features: tuple[Path, ...],
    beam_size: int | None,
    device: str | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    verbose: bool,
) -> None:
    """The archive for COCO's caption evaluation server, checked.

    Takes results files that are there (--val-results and --test-results), or captions both sets
    (--model and --features). Every image of the info files must have one caption with words, and
    no other image any; of a captioner's beams the best with words counts.

    \b
    Example:
      a2 submit --name a2 --val-info captions_val2014.json \\
                --test-info image_info_test2014.json \\
                --val-results val.json --test-results test.json
      a2 submit --name a2 --val-info captions_val2014.json \\
                --test-info image_info_test2014.json \\
                --model artifacts/train-xe/0123456789ab --features val-store --features test-store
    """
    ready, trained = (val_results, test_results), (models, features)
    if any(ready) == any(trained) or not (all(ready) or all(trained)):
        raise click.UsageError(
            "captions come from --val-results and --test-results, or from --model and --features; "
            "name both options of one pair"
        )
    from a2cap.pipeline.evaluation import coco_server as submission

    log(verbose)
    config = _settings(overrides, beam_size=beam_size, device=device)
    output = output or Path(f"{name}.zip")
    submission.check_name(name)
    submission.check_output(output, force=force)
    ids = submission.read_image_info(val_info, test_info)
    if val_results and test_results:
        captions = submission.read_captions(val_results, test_results)
    else:
        captions = submission.make_captions(models, features, ids, config.evaluate, config.runtime)
    submission.write_submission(output, name, captions, ids)
    counts = ", ".join(f"{len(said):,} of {of.name}" for of, said in captions.items())
    click.echo(f"{output}: captions {counts}")


def _settings(
    overrides: tuple[str, ...], *, beam_size: int | None, device: str | None, at_least: int = 1
) -> "Config":
    """The configuration, with at least so many beams; only `evaluate` and `runtime` count."""
    from a2cap.pipeline.config import load_config, override

    counting = {f"evaluate.{name}" for name in _COUNTING}
    for field in (setting.partition("=")[0].strip() for setting in overrides):
        if field not in counting and not field.startswith("runtime."):
            raise ConfigError(
                f"setting has no effect on these captions: {field!r}; leave it out, or set one of "
                f"runtime or evaluate ({', '.join(_COUNTING)})"
            )
    chosen = list(overrides)
    if beam_size is not None:
        chosen.append(f"evaluate.beam_size={beam_size}")
    if device is not None:
        chosen.append(override("runtime.device", device))
    config = load_config(None, chosen)
    if config.evaluate.beam_size < at_least:
        return load_config(None, [*chosen, f"evaluate.beam_size={at_least}"])
    return config


def _drawing(place: Path, *, many: bool) -> "_Draw":
    from a2cap.pipeline.captioning.attention_figure import FigurePaths, write_figure

    paths = FigurePaths(place, many=many)
    return lambda image, found: write_figure(paths.for_image(image.path), image, found)


def _line(path: Path, found: "CaptionedImage", beams: int | None, *, as_json: bool) -> str:
    """What is printed of an image; in JSON all is ASCII, which any terminal and locale takes."""
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


CAPTIONING = (caption, submit)
"""The commands of this module, in the order of their names."""
