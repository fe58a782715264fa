"""What `a2 caption` writes of each image, where, and what it reports at the end."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from a2cap.data.errors import A2Error, InputError, UnreadableError
from a2cap.data.files.paths import did_you_mean
from a2cap.pipeline.captioning.captioned_image import CaptionedImage
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.captioning.outputs.output import (
    CaptionOutput,
    Origin,
    State,
    caption_line,
    one_line,
)
from a2cap.pipeline.captioning.outputs.sidecars import Sidecars
from a2cap.pipeline.captioning.outputs.tables import Csv, JsonLines, Parquet
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.output import counted
from a2cap.pipeline.configuration import Config

OF_THE_IMAGE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
}
"""Errors that a path causes, not the disk: other images go on, and a retry alone does not help."""
SIDECARS = "sidecars"
"""Value of --output that asks for a text file beside each image."""
_NEAR_NAMES = 5  # missing images for which one is searched: it reads their folder


@dataclass(frozen=True)
class CaptionLines:
    """Lines of captioned images; beams: how many of them, None for all."""

    model: str
    beams: int | None
    prefix: str
    suffix: str
    config: Config

    def __post_init__(self) -> None:
        for option, text in (("--prefix", self.prefix), ("--suffix", self.suffix)):
            if one_line(text) != text:
                raise InputError(
                    f"{option} has a line break or a control character: {text!r}; leave it out"
                )

    @property
    def settings(self) -> str:
        """The settings that the user set, which enter the lines of captions."""
        decoding = self.config.evaluate
        stated = sorted(f"{name}={getattr(decoding, name)}" for name in decoding.model_fields_set)
        stated += [f"beams={self.beams}"] if self.beams else []
        around = {"prefix": self.prefix, "suffix": self.suffix}
        return " ".join([*stated, *(f"{name}={text!r}" for name, text in around.items() if text)])

    def of(self, image: NamedImage, captioned: CaptionedImage) -> tuple[Path, dict[str, Any]]:
        """Return the path and the captions of an image as JSON values."""
        line = caption_line(str(image.path), captioned, self.model, self.beams, self.settings)
        return image.path, {**line, "caption": f"{self.prefix}{line['caption']}{self.suffix}"}


class Printed(CaptionOutput):
    """Standard output, on which each image is printed; beams: how many of them, None for none."""

    def __init__(self, beams: int | None, *, as_json: bool) -> None:
        self._beams, self._as_json = beams, as_json

    def state(self, image: Path) -> State:
        """Return "missing": nothing has been printed."""
        return "missing"

    def write(self, image: Path, line: Mapping[str, Any]) -> bool:
        """Print the captions of an image."""
        click.echo(json.dumps(line) if self._as_json else self._text(image, line))
        return True

    def _text(self, image: Path, line: Mapping[str, Any]) -> str:
        name = click.format_filename(image)
        # a line break would be a second line, an escape sequence would reach the terminal
        lines = [f"{name if name.isprintable() else repr(name)}: {line['caption']}"]
        if self._beams is not None:
            lines += [f"{beam['score']:>10.4f}  {beam['caption']}" for beam in line["beams"]]
        return "\n".join(lines)

    def close(self) -> None:
        """Leave standard output open."""


def open_output(
    path: Path,
    origin: Origin,
    *,
    force: bool = False,
    replace_foreign: bool = False,
    sidecar_suffix: str | None = None,
) -> CaptionOutput:
    """Return the output that a user names.

    force: drop what earlier runs have written.
    replace_foreign: and what a2 did not write.
    Raises InputError for a file of another kind, and for captions of another model or settings.
    """
    if str(path) == SIDECARS:
        return Sidecars(
            origin, suffix=sidecar_suffix or ".txt", force=force, replace_foreign=replace_foreign
        )
    if sidecar_suffix is not None:
        raise InputError(f"--sidecar-suffix needs --output {SIDECARS}: {str(path)!r}; leave it out")
    if path.suffix == ".csv":
        return Csv(path, origin, force=force, replace_foreign=replace_foreign)
    if replace_foreign:
        raise InputError(
            f"--replace-foreign needs a CSV file or {SIDECARS} as --output: {str(path)!r}; leave "
            "it out, and remove the file yourself"
        )
    if path.suffix == ".jsonl":
        return JsonLines(path, origin, force=force)
    if path.suffix == ".parquet":
        return Parquet(path, origin, force=force)
    raise InputError(
        f"--output has an unknown suffix: {str(path)!r}; name a .jsonl, .csv or .parquet file, or "
        f"{SIDECARS!r} for a text file beside each image"
    )


@dataclass
class CaptionCounts:
    """Numbers of images that were captioned, kept and failed."""

    output: Path | None
    captioned: int = 0
    done: int = 0
    """Images that had a caption of a2."""
    foreign: int = 0
    """Images that had a text which a2 did not write."""
    failed: int = 0
    again: int = 0
    """Failed images that the same command may caption."""

    def fail(self, path: Path, error: A2Error | OSError) -> None:
        """Report a failed image."""
        self.failed += 1
        cause = error if isinstance(error, OSError) else error.__cause__
        of_image = isinstance(cause, OSError) and cause.errno in OF_THE_IMAGE
        self.again += isinstance(error, UnreadableError) and not of_image
        near = did_you_mean(path) if self.failed <= _NEAR_NAMES else ""
        reason: object = error
        if isinstance(error, OSError):
            reason = f"its caption cannot be written: {error.strerror}; check the folder"
        click.echo(f"a2: skipped {str(path)!r}: {reason}{near}", err=True)

    def finish(self, *, has_figures: bool) -> None:
        """Report what was written to the output; exit with 3 if images failed."""
        if has_figures and self.done:
            click.echo(
                f"a2: no figure of {counted(self.done, 'image')} that had captions; add --force to "
                "caption and draw them again",
                err=True,
            )
        if self.output is not None:
            parts = [f"{self.captioned:,} captioned"]
            parts += [f"{self.done:,} already had a caption"] if self.done else []
            if self.foreign:
                parts.append(
                    f"{self.foreign:,} already had a text of other origin: kept "
                    "(--replace-foreign replaces them)"
                )
            parts += [f"{self.failed:,} failed{self._remedy()}"] if self.failed else []
            click.echo(f"{self.output}: {', '.join(parts)}", err=True)
        if self.failed:
            raise click.exceptions.Exit(EXIT_SKIPPED)

    def _remedy(self) -> str:
        fixed = self.failed - self.again
        parts = ["run the same command again to retry" + (f" {self.again:,}" if fixed else "")]
        if not self.again:
            return "; a retry alone does not help: fix what is reported above first"
        return "; " + ", ".join([*parts, *([f"fix the other {fixed:,} first"] if fixed else [])])
