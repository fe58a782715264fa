"""Commands `a2 config`, `a2 doctor`, `a2 verify` and `a2 clean`: settings, machine, artifacts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from a2cap.pipeline.cli.options import (
    EXIT_ERROR,
    PATH,
    Commands,
    ExperimentOptions,
    artifacts_option,
    config_option,
    experiment_options,
    log,
    require_existing,
    set_option,
    verbose_option,
)
from a2cap.pipeline.cli.output import format_bytes

if TYPE_CHECKING:
    from a2cap.pipeline.doctor.clean import RemovableItem
    from a2cap.pipeline.doctor.verify import VerifiedItem


@click.command()
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
        click.echo(f"deleted {item.path}: {format_bytes(item.size)}")


@click.command()
@experiment_options()
def doctor(options: ExperimentOptions) -> None:
    """Check everything that the stages need.

    Problems come first, each with its remedy, then the machine and the other checks. Every command
    makes the same checks before it starts.

    \b
    Example:
      a2 doctor -c configs/a2-gate.yaml
    """
    from a2cap.pipeline.doctor.machine import describe_machine
    from a2cap.pipeline.doctor.preflight import PlannedRun, run_checks

    with options.open() as experiment:
        machine = describe_machine(experiment.config.runtime, experiment.artifacts)
        checks = run_checks(PlannedRun(experiment, experiment.shown))
    marks = _marks(sys.stdout)
    others = [f"{name:<11} {found}" for name, found in machine.items()]
    problems: dict[str, str] = {}  # two stages may share one
    for check in checks:
        line = f"{check.stage:<11} {marks[check.state]} {check.need}: {check.found}"
        if check.problem:
            problems.setdefault(check.found, line)
        else:
            others.append(line)
    click.echo("\n".join([*problems.values(), *others]))
    click.echo("1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems")
    if problems:
        raise click.exceptions.Exit(EXIT_ERROR)


def _marks(stream: TextIO) -> dict[str, str]:
    """Return how states are printed: coloured marks on a terminal that has them, else words."""
    states = {"ok": ("✓", "green"), "problem": ("✗", "red"), "unknown": ("?", "yellow")}
    if stream.isatty() and (stream.encoding or "").lower().startswith("utf"):
        return {state: click.style(mark, fg=colour) for state, (mark, colour) in states.items()}
    return {state: f"{state:<8}" for state in states}


@click.group(cls=Commands)
def config() -> None:
    """Show, explain and compare settings.

    \b
    Example:
      a2 config explain train.lr
    """


@config.command()
@config_option
@set_option
def show(config_file: Path | None, overrides: tuple[str, ...]) -> None:
    """Print the configuration with all defaults as YAML.

    \b
    Example:
      a2 config show -c configs/a2-gate.yaml --set train.batch_size=20
    """
    from a2cap.pipeline.config import load_config

    click.echo(load_config(config_file, overrides).to_yaml(), nl=False)


@config.command()
@click.argument("field")
def explain(field: str) -> None:
    """Explain a field, or the fields of a section.

    \b
    Example:
      a2 config explain model.alignment
      a2 config explain evaluate.beam_size
    """
    from a2cap.pipeline.config import explain_field

    click.echo("\n".join(explain_field(field)))


@config.command()
@click.argument("first", metavar="A", type=PATH)
@click.argument("second", metavar="B", type=PATH)
def diff(first: Path, second: Path) -> None:
    """Print the settings in which two configurations differ.

    A and B are YAML files, or results, which contain the configuration of their run.

    \b
    Example:
      a2 config diff configs/a2-gate.yaml artifacts/train-xe/0123456789ab
    """
    from a2cap.pipeline.config import load_config
    from a2cap.pipeline.engine.artifacts import RESOLVED_CONFIG
    from a2cap.pipeline.engine.explain import difference
    from a2cap.pipeline.engine.key import PreImage

    files = [path / RESOLVED_CONFIG if path.is_dir() else path for path in (first, second)]
    require_existing({"A": files[:1], "B": files[1:]})
    name = {"runtime": {"name"}}  # a result has that of its file
    before, after = (
        PreImage("config", 0, load_config(file).model_dump(mode="json", exclude=name), {})
        for file in files
    )
    click.echo("\n".join(difference(before, after)) or "no setting differs")


def _print_removable(found: "list[RemovableItem]") -> None:
    from a2cap.pipeline.doctor.clean import BY_NAME_ONLY

    for item in found:
        click.echo(f"{item.kind:<11} {format_bytes(item.size):>9}  {item.path}")
        click.echo(f"{'':<11} {'':>9}  {item.why}")
    if found:
        total = format_bytes(sum(item.size for item in found))
        cheap = [item.size for item in found if item.kind not in BY_NAME_ONLY]
        yes = f", or use --yes for {len(cheap)}, {format_bytes(sum(cheap))}" if cheap else ""
        click.echo(f"{len(found)} removable, {total}; name paths to delete{yes}")
    else:
        click.echo("nothing is removable")


def _print_verified(verified: "VerifiedItem") -> None:
    state = "damaged" if verified.damages else "intact"
    click.echo(f"{state:<8} {verified.kind:<11} {verified.path}")
    for line in (*verified.damages, *verified.notes):
        click.echo(f"{'':<8} {line}")
