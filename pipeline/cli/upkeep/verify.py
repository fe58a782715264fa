"""Command `a2 verify`: results, stores, checkpoints and captioners against their manifests."""

from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_ERROR, Restarted
from a2cap.pipeline.cli.options import PATH, artifacts_option, log, verbose_option
from a2cap.pipeline.upkeep.verify import VerifiedItem
from a2cap.pipeline.upkeep.verify import verify as verify_items


@click.command(cls=Restarted)
@click.argument("path", required=False, type=PATH)
@click.option("--data", is_flag=True, help="Read every byte.")
@artifacts_option
@verbose_option
def verify(path: Path | None, data: bool, artifacts: Path, verbose: bool) -> None:
    """Verify results, stores, checkpoints and captioners.

    PATH is one of them or a folder that contains some; the default is all results. Without --data,
    only manifests, files and sizes are checked.

    \b
    Example:
      a2 verify --data
      a2 verify artifacts/extract/0123456789ab/features.lmdb --data
    """
    log(verbose)
    damaged = count = 0
    for verified in verify_items(path or artifacts, data=data):
        _print_verified(verified)
        count += 1
        damaged += bool(verified.damages)
    how = "every byte was read" if data else "structure only, --data reads every byte"
    click.echo(f"{count} verified, {damaged} damaged: {how}")
    if damaged:
        raise click.exceptions.Exit(EXIT_ERROR)


def _print_verified(verified: VerifiedItem) -> None:
    state = "damaged" if verified.damages else "intact"
    click.echo(f"{state:<8} {verified.kind:<14} {verified.path}")
    for line in (*verified.damages, *verified.notes):
        click.echo(f"{'':<8} {line}")
