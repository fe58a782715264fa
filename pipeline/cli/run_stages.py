"""Stages of a command: run and printed, with the exit code of all."""

from collections.abc import Sequence
from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.print_scores import print_evaluation
from a2cap.pipeline.engine.artifact_names import EVALUATE
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment


def run_stages(
    experiment: Experiment, names: list[str], *, force: bool = False, output: Path | None = None
) -> None:
    """Run the stages; exit with code 3 if a stage skipped items or SPICE could not run."""
    outcomes = experiment.run_all(names, print_outcome, force=force, output=output)
    end_stages(outcomes, spice=experiment.config.evaluate.spice is True)


def end_stages(outcomes: Sequence[Outcome], *, spice: bool = False) -> None:
    """Print the scores of an evaluation; exit with 3 if items were skipped or SPICE could not run.

    outcomes: none on a rank other than 0. spice: True if SPICE was requested.
    """
    if not outcomes:
        return
    if not any(outcome.ran for outcome in outcomes):
        click.echo("nothing to do: every result exists; --force reruns a stage")
    skipped = any(outcome.manifest.skipped for outcome in outcomes)
    last = outcomes[-1]
    if last.manifest.origin.stage == EVALUATE:
        skipped = not print_evaluation(last.directory, spice=spice) or skipped
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)
