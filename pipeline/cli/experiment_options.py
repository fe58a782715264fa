"""Options of the commands that open an experiment, which import all stages."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path

import click

from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.cli.options import (
    artifacts_option,
    config_option,
    log,
    set_option,
    verbose_option,
)
from a2cap.pipeline.configuration import Config, load_named_config
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.runtime.rank_group import RankGroup, process_rank


@dataclass(frozen=True)
class ExperimentOptions:
    """Values of the options that every command of an experiment has."""

    config_file: Path | None
    overrides: tuple[str, ...]
    artifacts: Path
    verbose: bool
    group: RankGroup | None = None
    """The ranks that run the command under torchrun."""

    def config(self, *overrides: str) -> Config:
        """Load the experiment's configuration, with further overrides."""
        return load_named_config(self.config_file, (*self.overrides, *overrides))

    def open(self, *overrides: str) -> Experiment:
        """Open the experiment, with further overrides."""
        log(self.verbose)
        if self.group is not None and not self.group.is_main:
            logging.getLogger().setLevel(logging.WARNING)  # rank 0 reports progress for all
        return Experiment(self.config(*overrides), self.artifacts, group=self.group)


def experiment_options(
    *, distributed: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of an experiment to a command, which receives them as its first argument.

    distributed: under torchrun, every rank runs the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_experiment(
            config_file: Path | None,
            overrides: tuple[str, ...],
            artifacts: Path,
            verbose: bool,
            **arguments: object,
        ) -> None:
            options = ExperimentOptions(config_file, overrides, artifacts, verbose)
            process = process_rank()
            if not distributed or process.ranks == 1:
                command(options, **arguments)
                return
            from a2cap.pipeline.runtime.torchrun import connected  # imports torch

            with connected(options.config().runtime) as group, _exit_of_a_rank():
                command(replace(options, group=group), **arguments)

        shared = set_option(artifacts_option(verbose_option(with_experiment)))
        return config_option(shared)

    return decorate


@contextmanager
def _exit_of_a_rank() -> Iterator[None]:
    """Exit with 0 in place of 3, skipped items: torchrun takes that for a rank that failed."""
    try:
        yield
    except click.exceptions.Exit as done:
        if done.exit_code != EXIT_SKIPPED:
            raise
