"""Commands `a2 verify`, `a2 clean` and `a2 doctor`: care of artifacts and of the machine."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.pipeline.cli.options import (
    EXIT_ERROR,
    PATH,
    ExperimentOptions,
    artifacts_option,
    experiment_options,
    log,
    verbose_option,
)

if TYPE_CHECKING:
    from a2cap.pipeline.doctor.clean import RemovableItem
    from a2cap.pipeline.doctor.verify import VerifiedItem


@click.command()
@click.argument("path", required=False, type=PATH)
@click.option("--data", is_flag=True, help="Read every byte.")
@artifacts_option
@verbose_option
def verify(path: Path | None, data: bool, artifacts: Path, verbose: bool) -> None:
    """Verify results, feature stores, checkpoints and captioners.

    PATH is one of them or a folder that contains some; the default is all results. Without --data,
    only manifests, files and sizes are checked.

    \b
    Example:
      a2 verify --data
      a2 verify artifacts/extract/0123456789ab/features.lmdb --data
    """
    from a2cap.pipeline.doctor.verify import verify as verify_items

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


@click.command()
@click.argument("names", nargs=-1)
@experiment_options()
@click.option("--yes", is_flag=True, help="Delete everything that is neither needed nor costly.")
def clean(options: ExperimentOptions, names: tuple[str, ...], yes: bool) -> None:
    """List removable artifacts, or delete them.

    Without NAMES and --yes, nothing is deleted. Removable are results that this experiment does not
    use, unfinished work, and leftovers of reruns and locks. Not listed is what a process, an
    ensemble or a baseline reads. Costly (trainings, and what took more than an hour), resumable and
    undecided paths are deleted only if named.

    \b
    Example:
      a2 clean -c configs/a2-gate.yaml
      a2 clean -c configs/a2-gate.yaml artifacts/extract/0123456789ab
      a2 clean -c configs/a2-gate.yaml --yes
    """
    from a2cap.pipeline.doctor.clean import BY_NAME_ONLY, find_removable, remove_item, select_items

    with options.open() as experiment:
        config_file = options.config_file
        found = find_removable(experiment, keep=[config_file] if config_file else [])
        chosen = select_items(found, names, experiment.artifacts)
    if yes and not names:
        chosen = [item for item in found if item.kind not in BY_NAME_ONLY]
    if not names and not yes:
        _print_removable(found)
    for item in chosen:
        remove_item(item)
        click.echo(f"deleted {item.path}: {_bytes(item.size)}")


@click.command()
@experiment_options()
def doctor(options: ExperimentOptions) -> None:
    """Check everything that the stages need.

    Also describes the machine. Every command makes the same checks before it starts. Each problem
    is listed with its remedy.

    \b
    Example:
      a2 doctor -c configs/a2-gate.yaml
    """
    from a2cap.pipeline.doctor.machine import describe_machine
    from a2cap.pipeline.doctor.preflight import PlannedRun, run_checks

    with options.open() as experiment:
        for name, found in describe_machine(
            experiment.config.runtime, experiment.artifacts
        ).items():
            click.echo(f"{name:<11} {found}")
        checks = run_checks(PlannedRun(experiment, experiment.shown))
    for check in checks:
        click.echo(f"{check.stage:<11} {check.state:<8} {check.need}: {check.found}")
    problems = {check.found for check in checks if check.problem}  # two stages may share one
    click.echo("1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems")
    if problems:
        raise click.exceptions.Exit(EXIT_ERROR)


def _print_removable(found: "list[RemovableItem]") -> None:
    from a2cap.pipeline.doctor.clean import BY_NAME_ONLY

    for item in found:
        click.echo(f"{item.kind:<11} {_bytes(item.size):>9}  {item.path}")
        click.echo(f"{'':<11} {'':>9}  {item.why}")
    if found:
        total = _bytes(sum(item.size for item in found))
        cheap = [item.size for item in found if item.kind not in BY_NAME_ONLY]
        yes = f", or use --yes for {len(cheap)}, {_bytes(sum(cheap))}" if cheap else ""
        click.echo(f"{len(found)} removable, {total}; name paths to delete{yes}")
    else:
        click.echo("nothing is removable")


def _bytes(count: int) -> str:
    """Format a number of bytes with three digits: `512 B`, `18.2 GB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:  # more would be rounded to 1000
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def _print_verified(verified: "VerifiedItem") -> None:
    state = "damaged" if verified.damages else "intact"
    click.echo(f"{state:<8} {verified.kind:<11} {verified.path}")
    for line in (*verified.damages, *verified.notes):
        click.echo(f"{'':<8} {line}")
