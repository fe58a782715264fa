"""The commands that look after what is there: verify, clean and doctor."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2.pipeline.command_group import EXIT_ERROR, artifacts_option, log, verbose_option

if TYPE_CHECKING:
    from a2.pipeline.verification import Verified


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--data", is_flag=True, help="Reads every byte.")
@artifacts_option
@verbose_option
def verify(path: Path | None, data: bool, artifacts: Path, verbose: bool) -> None:
    """Whether results, feature stores, checkpoints and captioners are whole.

    PATH is one of them, or a folder with some; without it, all results are verified. Without --data
    that is their manifests, files and sizes.

    \b
    Example:
      a2 verify --data
      a2 verify artifacts/extract/0123456789ab/features.lmdb --data
    """
    from a2.pipeline.verification import verify as verified_in

    log(verbose)
    damaged = count = 0
    for verified in verified_in(path or artifacts, data=data):
        _say_verified(verified)
        count += 1
        damaged += bool(verified.damages)
    how = "every byte was read" if data else "structure only, --data reads every byte"
    click.echo(f"{count} verified, {damaged} damaged: {how}")
    if damaged:
        raise click.exceptions.Exit(EXIT_ERROR)


def _say_verified(verified: "Verified") -> None:
    state = "damaged" if verified.damages else "sound"
    click.echo(f"{state:<8} {verified.kind:<11} {verified.path}")
    for line in (*verified.damages, *verified.notes):
        click.echo(f"{'':<8} {line}")
