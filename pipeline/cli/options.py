"""Options that several commands have, and the log."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import click

from a2cap.data.errors import InputError
from a2cap.pipeline.cli.commands import EXIT_SKIPPED
from a2cap.pipeline.config import Config, load_config
from a2cap.pipeline.engine.artifacts import TRAIN_DETECTOR, TRAIN_SCST, TRAIN_XE
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.runtime.launch import launch

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

    def config(self, *overrides: str) -> Config:
        """Load the experiment's configuration, with further overrides."""
        config = load_config(self.config_file, (*self.overrides, *overrides))
        if self.config_file is None or config.runtime.name is not None:
            return config
        named = config.runtime.model_copy(update={"name": self.config_file.stem})
        return config.model_copy(update={"runtime": named})

    def open(self, *overrides: str) -> Experiment:
        """Open the experiment, with further overrides."""
        log(self.verbose)
        return Experiment(self.config(*overrides), self.artifacts)


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

    distributed: run the command on rank 0 of torchrun; the other ranks join its trainings.
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
            elif started.rank > 0:
                _join_trainings(options)
            else:
                from a2cap.pipeline.runtime.torchrun import main_rank

                with main_rank(options.config().runtime), _exit_of_a_rank():
                    command(options, **others)

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


def _join_trainings(options: ExperimentOptions) -> None:
    from a2cap.pipeline.runtime.torchrun import join_jobs
    from a2cap.pipeline.stages import train_detector, train_scst, train_xe

    stages = {TRAIN_XE: train_xe, TRAIN_SCST: train_scst, TRAIN_DETECTOR: train_detector}
    log(options.verbose)
    join_jobs(options.config().runtime, lambda job, runtime: stages[job.stage].join(job, runtime))


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
