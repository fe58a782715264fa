"""Options that several commands have, and the log."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from a2cap.data.errors import InputError
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.config import Config, load_named_config
from a2cap.pipeline.runtime.launch import launch
from a2cap.pipeline.runtime.torchrun import RankGroup, connected

if TYPE_CHECKING:
    from a2cap.pipeline.experiment import Experiment

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


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

    def open(self, *overrides: str) -> "Experiment":
        """Open the experiment, with further overrides."""
        # imported late, with all stages: `a2 config`, `clean`, `runs` and `verify` open none
        from a2cap.pipeline.experiment import Experiment

        log(self.verbose)
        if self.group is not None and not self.group.is_main:
            logging.getLogger().setLevel(logging.WARNING)  # rank 0 reports progress for all
        return Experiment(self.config(*overrides), self.artifacts, group=self.group)


config_option = click.option(
    "-c", "--config", "config_file", type=FILE, help="Read the experiment from this YAML file."
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Set one field; may be repeated.",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Log details.")
artifacts_option = click.option(
    "--artifacts",
    type=FOLDER,
    default=Path("artifacts"),
    show_default=True,
    help="Keep the results of the stages in this folder.",
)
force_option = click.option(
    "--force",
    is_flag=True,
    help="Run again and replace the result; resume such a run if it was interrupted.",
)


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
            **others: object,
        ) -> None:
            options = ExperimentOptions(config_file, overrides, artifacts, verbose)
            started = launch()
            if not distributed or started.ranks == 1:
                command(options, **others)
                return
            with connected(options.config().runtime) as group, _exit_of_a_rank():
                command(replace(options, group=group), **others)

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


def require_existing(named: Mapping[str, Iterable[Path | None]]) -> None:
    """Raise InputError if several paths do not exist; named: option -> its paths."""
    missing = [
        f"\n  {option} {str(path)!r}"
        for option, paths in named.items()
        for path in paths
        if path is not None and not path.exists()
    ]
    if len(missing) > 1:  # the command itself says best what a single one should be
        raise InputError(f"{len(missing)} paths do not exist; check them:{''.join(missing)}")


class Stderr(logging.Handler):
    """Handler that prints to the stderr of the moment: a bar replaces it, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        sys.stderr.write(f"{self.format(record)}\n")  # click.echo would write into the bar


def log(verbose: bool) -> None:
    """Log one line per event to stderr; `verbose` adds details, times and module names."""
    logging.basicConfig(
        handlers=[Stderr()],
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(message)s" if not verbose else "%(asctime)s %(name)s: %(message)s",
    )
    # they log every file, font and lock
    for noisy in ("PIL", "matplotlib", "filelock", "h5py", "tensorboard"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
