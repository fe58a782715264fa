"""Options that several commands have, and the log."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from a2cap.data.errors import InputError

Command = Callable[..., None]


class _Path(click.Path):
    """A path that is not empty: `Path("")`, as of an unset variable, is the working folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; a usage error if it is empty."""
        if value == "":
            self.fail("the path is empty; name a file or folder", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
FILE = _Path(path_type=Path, dir_okay=False)
FOLDER = _Path(path_type=Path, file_okay=False)


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


def grouped(
    name: str, make: type, *options: Callable[[Command], Command]
) -> Callable[[Command], Command]:
    """Add options to a command, which receives them as one argument.

    make: a dataclass with a field for each option.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_group(**arguments: Any) -> None:
            values = {field.name: arguments.pop(field.name) for field in fields(make)}
            command(**{name: make(**values)}, **arguments)

        decorated: Command = with_group
        for option in reversed(options):  # as a row of decorators
            decorated = option(decorated)
        return decorated

    return decorate


def require_existing(paths_of: Mapping[str, Iterable[Path | None]]) -> None:
    """Raise InputError if several paths do not exist; paths_of: option -> its paths."""
    missing = [
        f"\n  {option} {str(path)!r}"
        for option, paths in paths_of.items()
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
