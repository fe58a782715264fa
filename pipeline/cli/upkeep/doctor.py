"""Command `a2 doctor`: the machine, and everything that the stages need."""

import sys
from collections.abc import Sized
from typing import TextIO

import click

from a2cap.pipeline.cli.commands import EXIT_ERROR
from a2cap.pipeline.cli.experiment_options import ExperimentOptions, experiment_options
from a2cap.pipeline.stages.plan import check_stages
from a2cap.pipeline.upkeep.machine import describe_machine


@click.command()
@experiment_options()
def doctor(options: ExperimentOptions) -> None:
    """Check everything that the stages need.

    Problems come first, each with its remedy, then warnings, the machine and the other checks.
    Every command makes the same checks before it starts.

    \b
    Example:
      a2 doctor -c configs/a2-gate.yaml
    """
    with options.open() as experiment:
        machine = describe_machine(experiment.config.runtime, experiment.artifacts)
        checks = check_stages(experiment, experiment.shown)
    marks = _marks(sys.stdout)
    machine_lines = [f"{name:<14} {value}" for name, value in machine.items()]
    # by text: two stages may share one
    listed: dict[str, dict[str, str]] = {"problem": {}, "warning": {}}
    for check in checks:
        line = f"{check.stage:<14} {marks[check.state]} {check.need}: {check.text}"
        if check.state in listed:
            listed[check.state].setdefault(check.text, line)
        else:
            machine_lines.append(line)
    problems, warnings = listed.values()
    click.echo("\n".join([*problems.values(), *warnings.values(), *machine_lines]))
    click.echo(
        _counted(problems, "problem") + (f", {_counted(warnings, 'warning')}" if warnings else "")
    )
    if problems:
        raise click.exceptions.Exit(EXIT_ERROR)


def _counted(items: Sized, name: str) -> str:
    return f"1 {name}" if len(items) == 1 else f"{len(items) or 'no'} {name}s"


def _marks(stream: TextIO) -> dict[str, str]:
    """Return how states are printed: coloured marks on a terminal that has them, else words."""
    states = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}
    states["unknown"] = ("?", "yellow")
    if stream.isatty() and (stream.encoding or "").lower().startswith("utf"):
        return {state: click.style(mark, fg=colour) for state, (mark, colour) in states.items()}
    return {state: f"{state:<8}" for state in states}
