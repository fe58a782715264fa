"""Shared options of the commands, and the exit codes of their errors."""

import errno
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from a2cap.data.errors import A2Error, ConfigError, InputError, LockedError
from a2cap.model.errors import ModelError
from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted
from a2cap.pipeline.runtime.launch import launch

if TYPE_CHECKING:
    from a2cap.pipeline.config import Config
    from a2cap.pipeline.experiment import Experiment

EXIT_ERROR, EXIT_USAGE, EXIT_SKIPPED, EXIT_LOCKED = 1, 2, 3, 75
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
_EXIT_CODES: dict[type[Exception], int] = {ConfigError: EXIT_USAGE, LockedError: EXIT_LOCKED}

# the others resume after a stop
_RESTARTED = {"caption", "detector evaluate", "karpathy", "scenes", "submit"}


class Failure(click.ClickException):
    """An error that is reported as one line on stderr, with its own exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        setattr(self, "exit_code", exit_code)  # noqa: B010  (click declares it per class)

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"a2: {self.message}", err=True, file=file)


_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free disk space, then run the command again"
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "fix its permissions, or name another path"
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE), 'raise the limit with "ulimit -n", then run the command again'
    ),
    errno.EIO: "check the disk, then run the command again",
}
"""Error of the system -> what to do."""


class Commands(click.Group):
    """Command group that turns every expected error into one line and an exit code."""

    sections: Mapping[str, Sequence[str]] = {}
    """Title -> names of the commands that help lists below it; empty: one list of all."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _move_example_to_the_end(self)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        if not self.sections:
            super().format_commands(ctx, formatter)
        width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                rows = [(name, self.commands[name].get_short_help_str(80)) for name in names]
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command and move the example of its docstring to the end of its help."""
        _move_example_to_the_end(cmd)
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        # SIGTERM too: schedulers send it some time before they kill
        stopping = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, raise_interrupted) for number in stopping}
        try:
            return super().invoke(ctx)
        except (A2Error, ModelError) as error:
            raise Failure(str(error), _EXIT_CODES.get(type(error), EXIT_ERROR)) from error
        except Interrupted as stop:
            how = "restart" if _invoked(ctx) in _RESTARTED else "resume"
            text = f"stopped; run the same command again to {how}"
            raise Failure(text, 128 + stop.signal_number) from stop
        except BrokenPipeError:
            raise  # the reader has closed the pipe, as "| head" does; click exits quietly
        except OSError as error:
            # filename2 is the target of a copy or a rename
            name = error.filename2 or error.filename or "unknown file"
            remedy = _REMEDIES.get(error.errno or 0, "check the path, then run the command again")
            text = f"{error.strerror or error}: {name!r}; {remedy}"
            raise Failure(text, EXIT_ERROR) from error
        finally:  # tests and notebooks call this in a process that lives on
            for number, handler in before.items():
                signal.signal(number, handler)


def _invoked(ctx: click.Context) -> str:
    """Return the name of the command, without `a2`."""
    names = [str(ctx.invoked_subcommand)]
    while ctx.parent is not None:
        names.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(names)


def _move_example_to_the_end(command: click.Command) -> None:
    text, mark, example = cleandoc(command.help or "").partition("\b\nExample:")
    if mark:  # a nested group comes here twice
        command.help, command.epilog = text, mark + example


@dataclass(frozen=True)
class ExperimentOptions:
    """Values of the options that every command of an experiment has."""

    config_file: Path | None
    overrides: tuple[str, ...]
    artifacts: Path
    verbose: bool

    def config(self, *overrides: str) -> "Config":
        """Load the experiment's configuration, with further overrides."""
        from a2cap.pipeline.config import load_config

        config = load_config(self.config_file, (*self.overrides, *overrides))
        if self.config_file is None or config.runtime.name is not None:
            return config
        named = config.runtime.model_copy(update={"name": self.config_file.stem})
        return config.model_copy(update={"runtime": named})

    def open(self, *overrides: str) -> "Experiment":
        """Open the experiment, with further overrides."""
        from a2cap.pipeline.experiment import Experiment

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
    from a2cap.pipeline.engine.artifacts import TRAIN_DETECTOR, TRAIN_SCST, TRAIN_XE
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
