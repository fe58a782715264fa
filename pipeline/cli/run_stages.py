"""Check, run and print stages of an experiment one after the other."""

from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.cli.scores import print_evaluation
from a2cap.pipeline.doctor.preflight import require_runnable
from a2cap.pipeline.experiment import Experiment


def run_stages(
    experiment: Experiment, names: list[str], *, force: bool = False, output: Path | None = None
) -> None:
    """Run the stages; exit with code 3 if a stage skipped items or SPICE could not run."""
    require_runnable(experiment, names, force=force, output=output)
    skipped = ran = False
    for number, name in enumerate(names, start=1):
        if len(names) > 1:
            click.echo(f"stage {number} of {len(names)}: {name}", err=True)
        outcome = experiment.run(name, force=force, output=output)
        print_outcome(name, outcome)
        skipped = skipped or bool(outcome.manifest.skipped)
        ran = ran or outcome.ran
    if not ran:
        click.echo("nothing to do: every result exists; --force reruns a stage")
    if names[-1] == "evaluate":
        spice = experiment.config.evaluate.spice
        skipped = not print_evaluation(outcome.directory, spice=spice) or skipped
    if skipped:
        raise click.exceptions.Exit(EXIT_SKIPPED)
