"""Printed outcomes and states of stages."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import MANIFEST
from a2cap.pipeline.engine.progress import format_duration
from a2cap.pipeline.engine.status import Status

if TYPE_CHECKING:
    from a2cap.pipeline.engine.run import Outcome
    from a2cap.pipeline.experiment import Experiment

_SKIPPED_SHOWN = 10  # the manifest lists all


def print_outcome(name: str, outcome: "Outcome") -> None:
    """Print the outcome of a stage, the path of its result, and its skipped items."""
    seconds = format_duration(outcome.manifest.seconds)
    state = f"done in {seconds}" if outcome.ran else "up to date"
    click.echo(f"{name}: {state}: {outcome.directory}")
    items = outcome.manifest.skipped
    if not items:
        return
    listed = outcome.directory / MANIFEST
    click.echo(f"{name}: {len(items)} skipped, listed in {listed}", err=True)
    for item in items[:_SKIPPED_SHOWN]:
        click.echo(f"  {item.image_id}: {item.reason}", err=True)
    if len(items) > _SKIPPED_SHOWN:
        click.echo(f"  and {len(items) - _SKIPPED_SHOWN} more", err=True)


def print_status(
    experiment: "Experiment",
    names: list[str],
    *,
    explain: bool,
    as_json: bool = False,
    stop: bool = True,
) -> None:
    """Print the status of each stage; with `explain` also the reasons for a run.

    stop: raise the error of a stage whose input is missing; otherwise it is shown as blocked, and
        the command exits with 1 after the last line.
    """
    statuses = []
    for name in names:
        try:
            statuses.append(experiment.status(name))
        except A2Error as error:
            if stop:
                raise
            statuses.append(Status(name, "blocked", None, [str(error)]))
    if as_json:
        click.echo(json.dumps([asdict(status) for status in statuses], indent=1, default=str))
    for status in [] if as_json else statuses:
        click.echo(f"{status.stage:<14} {status.state:<8} {status.directory or ''}".rstrip())
        if (explain or status.state == "blocked") and status.why:
            click.echo(f"{'':<14} {'; '.join(status.why)}")
    if any(status.state == "blocked" for status in statuses):
        raise click.exceptions.Exit(1)


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: `1 image`, `2 images`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
