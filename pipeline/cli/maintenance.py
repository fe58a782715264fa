"""The commands that look after what is there: verify, clean and doctor."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.pipeline.cli.options import (
    EXIT_ERROR,
    ExperimentOptions,
    artifacts_option,
    experiment_options,
    log,
    verbose_option,
)

if TYPE_CHECKING:
    from a2cap.pipeline.doctor.clean import Removable
    from a2cap.pipeline.doctor.verify import VerifiedItem


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
    from a2cap.pipeline.doctor.verify import verify as verified_in

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


@click.command()
@click.argument("names", nargs=-1)
@experiment_options
@click.option("--yes", is_flag=True, help="Deletes all that no run of this experiment can need.")
def clean(options: ExperimentOptions, names: tuple[str, ...], yes: bool) -> None:
    """Lists what may go, and deletes what is named, or all of it with --yes.

    May go: results that this experiment does not use, unfinished work, and what reruns and locks
    left. Nothing that is read or worked on goes, and no input. What is resumable, or not decided
    before another stage has run, goes only by its name.

    \b
    Example:
      a2 clean -c configs/a2-gate.yaml
      a2 clean -c configs/a2-gate.yaml artifacts/extract/0123456789ab
      a2 clean -c configs/a2-gate.yaml --yes
    """
    from a2cap.pipeline.doctor.clean import BY_NAME_ONLY, named, removable, remove

    with options.open() as experiment:
        config_file = options.config_file
        found = removable(experiment, keep=[config_file] if config_file else [])
        chosen = named(found, names, experiment.artifacts)
    if yes and not names:
        chosen = [item for item in found if item.kind not in BY_NAME_ONLY]
    if not names and not yes:
        _say_removable(found)
    for item in chosen:
        remove(item)
        click.echo(f"deleted {item.path}: {_bytes(item.size)}")


@click.command()
@experiment_options
def doctor(options: ExperimentOptions) -> None:
    """What would keep the stages from running, with a remedy each; the machine and its versions.

    Every command looks at the same before it begins.

    \b
    Example:
      a2 doctor -c configs/a2-gate.yaml
    """
    from a2cap.pipeline.doctor.machine import describe_machine
    from a2cap.pipeline.doctor.preflight import Preflight

    with options.open() as experiment:
        for name, found in describe_machine(
            experiment.config.runtime, experiment.artifacts
        ).items():
            click.echo(f"{name:<11} {found}")
        checks = Preflight(experiment, experiment.shown).checks()
    for check in checks:
        click.echo(f"{check.stage:<11} {check.state:<8} {check.need}: {check.found}")
    problems = {check.found for check in checks if check.problem}
    click.echo("1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems")
    if problems:
        raise click.exceptions.Exit(EXIT_ERROR)


def _say_removable(found: "list[Removable]") -> None:
    for item in found:
        click.echo(f"{item.kind:<11} {_bytes(item.size):>9}  {item.path}")
        click.echo(f"{'':<11} {'':>9}  {item.why}")
    if found:
        total = _bytes(sum(item.size for item in found))
        click.echo(f"{len(found)} may go, {total}; name what shall go, or --yes")
    else:
        click.echo("nothing may go")


def _bytes(count: int) -> str:
    """A number of bytes to three digits: `512 B`, `18.2 GB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def _say_verified(verified: "VerifiedItem") -> None:
    state = "damaged" if verified.damages else "sound"
    click.echo(f"{state:<8} {verified.kind:<11} {verified.path}")
    for line in (*verified.damages, *verified.notes):
        click.echo(f"{'':<8} {line}")


UPKEEP = (clean, doctor, verify)
"""The commands of this module, in the order of their names."""
