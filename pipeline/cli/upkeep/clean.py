"""Command `a2 clean`: artifacts that nothing needs any more."""

from collections import Counter

import click

from a2cap.data.errors import InputError
from a2cap.data.files.paths import did_you_mean
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.engine.progress import format_bytes
from a2cap.pipeline.upkeep.clean import (
    LEFTOVER,
    UNKNOWN,
    RemovableItem,
    find_removable,
    remove_item,
    select_items,
)


@click.command()
@click.argument("names", nargs=-1)
@experiment_options()
@click.option("--yes", is_flag=True, help="Delete what reruns and deletions left over.")
def clean(options: ExperimentOptions, names: tuple[str, ...], yes: bool) -> None:
    """List removable artifacts, or delete them.

    Without NAMES and --yes, nothing is deleted. Listed are results that this experiment does not
    use, unfinished work, and leftovers of reruns and deletions. Not listed is what a process, an
    ensemble or a baseline reads. Results and unfinished work are deleted only if named.

    \b
    Example:
      a2 clean -c configs/a2-gate.yaml
      a2 clean -c configs/a2-gate.yaml artifacts/extract/0123456789ab
      a2 clean -c configs/a2-gate.yaml --yes
    """
    with options.open() as experiment:
        config_file = options.config_file
        if not experiment.artifacts.is_dir():
            raise InputError(
                f"folder of artifacts not found: {str(experiment.artifacts)!r}; "
                "check --artifacts, or the folder that you are in"
                f"{did_you_mean(experiment.artifacts)}"
            )
        removable = find_removable(experiment, keep=[config_file] if config_file else [])
        to_delete = select_items(removable, names, experiment.artifacts)
    if yes and not names:
        to_delete = [item for item in removable if item.kind == LEFTOVER]
    if not names and not yes:
        _print_removable(removable)
    for item in to_delete:
        remove_item(item)
        click.echo(f"deleted {item.path}: {format_bytes(item.size)}")


def _print_removable(removable: list[RemovableItem]) -> None:
    # a missing setting leaves the results of most stages unknown: said once
    unknown = Counter(item.reason for item in removable if item.reason.startswith(UNKNOWN))
    for item in removable:
        is_repeated = unknown[item.reason] > 1
        why = f"read by {item.reader}" * bool(item.reader) if is_repeated else item.why
        click.echo(f"{item.kind:<10} {format_bytes(item.size):>9}  {item.path}")
        if why:
            click.echo(f"{'':<10} {'':>9}  {why}")
    for reason, count in unknown.items():
        if count > 1:
            click.echo(f"{count} results: {reason}; or name the experiment with -c FILE")
    if removable:
        total = format_bytes(sum(item.size for item in removable))
        left = [item.size for item in removable if item.kind == LEFTOVER]
        yes = f", or use --yes for {len(left)}, {format_bytes(sum(left))}" if left else ""
        click.echo(f"{len(removable)} removable, {total}; name paths to delete{yes}")
    else:
        click.echo("nothing is removable")
