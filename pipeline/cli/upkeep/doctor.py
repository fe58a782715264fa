"""Command `a2 doctor`: the machine, and everything that the stages need."""

import sys
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

    Problems come first, each with its remedy, then the machine and the other checks. Every command
    makes the same checks before it starts.

    \b
    Example:
      a2 doctor -c configs/a2-gate.yaml
    """
    with options.open() as experiment:
        machine = describe_machine(experiment.config.runtime, experiment.artifacts)
        checks = check_stages(experiment, experiment.shown)
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
