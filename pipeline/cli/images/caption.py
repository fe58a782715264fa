"""Commands `a2 caption` and `a2 submit`: captions of images, and for COCO's evaluation server."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from a2cap.data.errors import A2Error, ConfigError
from a2cap.pipeline.cli.options import (
    EXIT_SKIPPED,
    FILE,
    FOLDER,
    PATH,
    force_option,
    log,
    require_existing,
    set_option,
    verbose_option,
)
from a2cap.pipeline.engine.lock import reading

if TYPE_CHECKING:
    from a2cap.pipeline.captioning.caption_images import CaptionedImage
    from a2cap.pipeline.captioning.given_boxes import NamedImage
    from a2cap.pipeline.config import Config


model_option = click.option(
    "--model",
    "models",
    required=True,
    multiple=True,
    type=FOLDER,
    help="Use this captioner: the folder of a training or one above it, a label, the start of a "
    'key or "latest" of "a2 runs", or "scenes", the bundled one. Repeat for an ensemble.',
)


def decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of decoding to a command, which receives them as `config`."""

    @wraps(command)
    def with_config(
        overrides: tuple[str, ...],
        beam_size: int | None,
        device: str | None,
        verbose: bool,
        **others: Any,
    ) -> None:
        from a2cap.pipeline.config import override

        log(verbose)
        chosen = list(overrides)
        if beam_size is not None:
            chosen.append(f"evaluate.beam_size={beam_size}")
        if device is not None:
            chosen.append(override("runtime.device", device))
        command(config=_config(chosen, beams=others.get("beams") or 1), **others)

    named = click.option("--device", help="Set runtime.device: auto, cpu, cuda or cuda:N.")
    beam = click.option("--beam-size", type=click.IntRange(min=1), help="Set evaluate.beam_size.")
    return beam(named(set_option(verbose_option(with_config))))


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and image.")
@click.option(
    "--figure",
    type=PATH,
    help="Draw the attention of each token: FILE.png (.jpg, .webp, .pdf, .svg) for one image, or "
    "a folder for NAME.png of each image.",
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
    as_json: bool,
    figure: Path | None,
    layer: int | None,
    head: int | None,
    batch_size: int,
    config: "Config",
) -> None:
    """Caption image files with a trained captioner.

    IMAGES are files, folders, or - for paths on standard input, one per line. Unreadable images are
    reported and skipped; the exit code is then 3.

    A line of --json has image (the path), caption, score (log-probability), beams (captions and
    scores, top-scoring first), width and height in pixels, and boxes, the regions in pixels as
    [x1, y1, x2, y2].

    \b
    Example:
      a2 caption dog.jpg holidays --model artifacts/train-xe/0123456789ab --beams 3
      a2 caption dog.jpg --model latest --figure dog.png
    """
    if (layer and not figure) or (head and not layer):
        raise click.UsageError("--layer needs --figure, and --head needs --layer; add the option")
    from a2cap.pipeline.captioning.caption_images import caption_files
    from a2cap.pipeline.cli.images.image_arguments import may_be_many, named_images
    from a2cap.pipeline.runs import find_trainings

    models = find_trainings(models)
    require_existing({"--model": models, "--boxes": [boxes]})
    named = named_images(images, sys.stdin.buffer)
    # refuses a wrong path before a model is loaded
    write = _figure_writer(figure, many=may_be_many(images), layer=layer, head=head)
    failed = False
    captioned = caption_files(
        named,
        models=models,
        boxes=boxes,
        decoding=config.evaluate,
        runtime=config.runtime,
        batch_size=batch_size,
        attention=write is not None,
    )
    with reading(*models):
        for image, found in captioned:
            if isinstance(found, A2Error):
                failed = True
                click.echo(f"a2: skipped {str(image.path)!r}: {found}", err=True)
                continue
            click.echo(_line(image.path, found, beams, as_json=as_json))
            if write is not None:
                # standard output has the captions alone
                click.echo(f"figure: {write(image, found)}", err=True)
    if failed:
        raise click.exceptions.Exit(EXIT_SKIPPED)


def _figure_writer(
    figure: Path | None, *, many: bool, layer: int | None, head: int | None
) -> "Callable[[NamedImage, CaptionedImage], Path] | None":
    """Return the function that writes the figure of one image and returns its path, if asked."""
    if figure is None:
        return None
    from a2cap.pipeline.captioning.attention_figure import FigurePaths, write_figure

    paths = FigurePaths(figure, many=many)

    def write(image: "NamedImage", found: "CaptionedImage") -> Path:
        path = paths.for_image(image.path)
        write_figure(path, image, found, layer=layer, head=head)
        return path

    return write


@click.command()
@click.option("--name", required=True, help="Name of the submission: letters, digits, - and _.")
@click.option(
    "--val-info", required=True, type=FILE, help="Images of val2014: captions_val2014.json."
)
@click.option(
    "--test-info", required=True, type=FILE, help="Images of test2014: image_info_test2014.json."
)
@click.option("--val-results", type=FILE, help="Captions of val2014 in the COCO results format.")
@click.option("--test-results", type=FILE, help="Captions of test2014 in the COCO results format.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=FOLDER,
    help="Caption both sets with this captioner, as in a2 caption; repeat for an ensemble.",
)
@click.option(
    "--features",
    multiple=True,
    type=FOLDER,
    help='Read features from this store of "a2 extract"; may be repeated.',
)
@click.option("--output", type=FILE, help="Write the archive to this file.  [default: NAME.zip]")
@force_option
@decoding_options
def submit(
    name: str,
    val_info: Path,
    test_info: Path,
    val_results: Path | None,
    test_results: Path | None,
    models: tuple[Path, ...],
    features: tuple[Path, ...],
    output: Path | None,
    force: bool,
    config: "Config",
) -> None:
    """Create a checked archive for COCO's server.

    Use existing results files (--val-results and --test-results), or caption both sets (--model and
    --features). Each image of the info files must have exactly one non-empty caption, and no other
    image may have one. Of a captioner's beams the top-scoring non-empty caption is used.

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
    from a2cap.pipeline.runs import find_trainings

    models = find_trainings(models)
    infos = {"--val-info": [val_info], "--test-info": [test_info]}
    results = {"--val-results": [val_results], "--test-results": [test_results]}
    require_existing({**infos, **results, "--model": models, "--features": features})
    from a2cap.pipeline.captioning.caption_stores import caption_sets
    from a2cap.pipeline.evaluation import coco_server as submission
    from a2cap.pipeline.evaluation.results import read_results

    output = output or Path(f"{name}.zip")
    submission.check_name(name)
    submission.check_output(output, force=force)
    ids = submission.read_image_info(val_info, test_info)
    if val_results and test_results:
        files = {submission.VAL: val_results, submission.TEST: test_results}
        captions = {part: read_results(path) for part, path in files.items()}
    else:
        with reading(*models, *features):
            captions = caption_sets(models, features, ids, config.evaluate, config.runtime)
    submission.write_submission(output, name, captions, ids)
    counts = ", ".join(f"{len(found):,} of {part}" for part, found in captions.items())
    click.echo(f"{output}: captions {counts}")


def _config(overrides: list[str], *, beams: int) -> "Config":
    """Load the configuration with at least so many beams; reject settings without effect."""
    from a2cap.pipeline.captioning.config import CaptioningConfig
    from a2cap.pipeline.config import load_config

    # the batch size is an option of its own, or that of the stores
    decoding = sorted(CaptioningConfig.model_fields.keys() - {"batch_size"})
    for field in (setting.partition("=")[0].strip() for setting in overrides):
        section, _, name = field.partition(".")
        if section != "runtime" and not (section == "evaluate" and name in decoding):
            raise ConfigError(
                f"setting has no effect on these captions: {field!r}; remove it, or set a field of "
                f"runtime or evaluate ({', '.join(decoding)})"
            )
    config = load_config(None, overrides)
    if config.evaluate.beam_size < beams:
        return load_config(None, [*overrides, f"evaluate.beam_size={beams}"])
    return config


def _line(path: Path, found: "CaptionedImage", beams: int | None, *, as_json: bool) -> str:
    """Format the captions of an image."""
    shown = found.beams[:beams]
    if as_json:  # ASCII, which every terminal and locale accepts
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
