"""Options of `a2 caption` for what is written and drawn of each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from a2cap.pipeline.captioning.caption_images import attention_by
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.captioning_config import ANIMATED, Style
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.captioning.outputs.output import CaptionOutput, Origin
from a2cap.pipeline.cli.caption_lines import CaptionLines, Printed, open_output
from a2cap.pipeline.cli.options import PATH, grouped, require_existing
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.runs import find_trainings
from a2cap.pipeline.weights.captioners import captioner_name

_LABEL = 30  # characters of a captioner's name beside a row of panels

Draw = Callable[[NamedImage, CaptionedImage], Path]
"""Writes the figure of an image, and returns its path."""


@dataclass(frozen=True)
class OutputOptions:
    """Where captions are written, and how; path: None for standard output."""

    path: Path | None
    force: bool
    replace_foreign: bool
    sidecar_suffix: str | None
    prefix: str
    suffix: str
    as_json: bool

    def __post_init__(self) -> None:
        options = {
            "--force": self.force,
            "--replace-foreign": self.replace_foreign,
            "--sidecar-suffix": self.sidecar_suffix,
        }
        if self.path is None and (used := [name for name, value in options.items() if value]):
            raise click.UsageError(f"{used[0]} needs --output; add the option")

    def open(self, lines: CaptionLines) -> CaptionOutput:
        """Return the output; raise InputError as `open_output` does."""
        if self.path is None:
            return Printed(lines.beams, as_json=self.as_json)
        return open_output(
            self.path,
            Origin(lines.model, lines.settings),
            force=self.force,
            replace_foreign=self.replace_foreign,
            sidecar_suffix=self.sidecar_suffix,
        )


output_options = grouped(
    "output",
    OutputOptions,
    click.option(
        "--output",
        "path",
        type=PATH,
        help="Write the lines of --json into FILE.jsonl or FILE.parquet, image and caption into "
        "FILE.csv, or, with the word sidecars, each caption into NAME.txt beside its image. Images "
        "that have one are skipped.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="With --output, caption all images again and replace the lines.",
    ),
    click.option(
        "--replace-foreign",
        is_flag=True,
        help="With --output, also replace texts and CSV files that a2 did not write, or that were "
        "edited since.",
    ),
    click.option(
        "--sidecar-suffix",
        metavar=".SUFFIX",
        help="Write sidecars NAME.SUFFIX in place of NAME.txt.",
    ),
    click.option(
        "--prefix", default="", help="Begin each caption with this text, its space included."
    ),
    click.option(
        "--suffix", default="", help="End each caption with this text, its space included."
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object per line and image."
    ),
)


@dataclass(frozen=True)
class FigureOptions:
    """What a user asks for; None for an option that is not set."""

    figure: Path | None
    style: Style | None
    below: Path | None
    layer: int | None
    head: int | None

    def __post_init__(self) -> None:
        if (self.layer and not self.figure) or (self.head and not self.layer):
            raise click.UsageError(
                "--layer needs --figure, and --head needs --layer; add the option"
            )
        option = "--figure-style" if self.style else "--figure-below"
        if not (self.style or self.below):
            return
        if self.figure is None:
            raise click.UsageError(f"{option} needs --figure; add the option")
        if self.figure.suffix.lower() == ANIMATED:
            raise click.UsageError(
                f"{option} does not apply to an animation: {str(self.figure)!r}; use .png"
            )
        if self.below and (self.layer or self.style == "boxes"):
            other = "--layer" if self.layer else "--figure-style boxes"
            raise click.UsageError(f"--figure-below draws panels of the mean: leave {other} out")

    def writer(
        self, models: Sequence[Path], boxes: Path | None, config: Config, *, many: bool
    ) -> Draw | None:
        """Return the function that draws an image, None without --figure; many: as `FigurePaths`.

        Loads the captioner of --figure-below.
        """
        if self.figure is None:
            return None
        from a2cap.pipeline.captioning.attention_figure import FigurePaths, write_figure

        paths, second, names = FigurePaths(self.figure, many=many), None, (_label(models), "")
        if self.below is not None:
            lower_models = find_trainings([self.below])
            require_existing({"--figure-below": lower_models})
            second = attention_by(
                lower_models, boxes=boxes, decoding=config.evaluate, runtime=config.runtime
            )
            names = names[0], _label(lower_models)

        def draw(image: NamedImage, captioned: CaptionedImage) -> Path:
            path = paths.for_image(image)
            write_figure(
                path,
                image,
                captioned,
                layer=self.layer,
                head=self.head,
                style=self.style or "panels",
                below=None if second is None else second(image, captioned),
                names=names,
            )
            return path

        return draw


figure_options = grouped(
    "drawing",
    FigureOptions,
    click.option(
        "--figure",
        type=PATH,
        help="Draw the attention of each token: FILE.png (.jpg, .webp, .pdf, .svg) for one image, "
        "FILE.gif for an animation, or a folder for NAME.png of each image.",
    ),
    click.option(
        "--figure-style",
        "style",
        type=click.Choice(get_args(Style)),
        help="panels: original and aligned attention of each word (default); boxes: the region "
        "with the most attention before alignment in blue, after it in red.",
    ),
    click.option(
        "--figure-below",
        "below",
        type=PATH,
        help="Draw this captioner's attention to the same caption in a second row, such as hard "
        "below soft attention.",
    ),
    click.option(
        "--layer",
        type=click.IntRange(min=1),
        help="Draw this decoder layer, not the mean over all.",
    ),
    click.option(
        "--head", type=click.IntRange(min=1), help="Draw this head of --layer, not the mean."
    ),
)


def _label(models: Sequence[Path]) -> str:
    """Return the name of a captioner, or the end of its path, as the label of a row."""
    name = captioner_name(models)
    return name if len(name) <= _LABEL else f"…{name[-_LABEL:]}"
