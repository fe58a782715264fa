"""Command groups: commands that are imported when they are run, and the exit codes of errors."""

import errno
import logging
import shlex
import signal
from collections.abc import Mapping
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from a2cap.data.errors import A2Error, ConfigError, LockedError, near_name
from a2cap.data.files.paths import did_you_mean
from a2cap.data.image_ids import IMAGE_SUFFIXES
from a2cap.model.errors import ModelError
from a2cap.model.plug_ins import failed_plug_in
from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted
from a2cap.pipeline.runtime.device_errors import device_failure

logger = logging.getLogger(__name__)

EXIT_ERROR, EXIT_USAGE, EXIT_SKIPPED, EXIT_LOCKED = 1, 2, 3, 75
_WORDS = f"{__name__}.words"  # of the command line
_EXIT_CODES: dict[type[Exception], int] = {ConfigError: EXIT_USAGE, LockedError: EXIT_LOCKED}


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


class Restarted(click.Command):
    """Command that begins again after a stop; any other resumes."""

    def restarts(self, words: list[str]) -> bool:
        """Return True; words: of the command line."""
        return True


class RestartedWithoutOutput(Restarted):
    """Command that resumes if it writes a file, unless it is forced."""

    def restarts(self, words: list[str]) -> bool:
        """Return False for a command line that names an output to continue."""
        return "--force" in words or not any(word.startswith("--output") for word in words)


class Commands(click.Group):
    """Command group that turns every expected error into one line and an exit code."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _move_example_to_the_end(self)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command and move the example of its docstring to the end of its help."""
        _move_example_to_the_end(cmd)
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command line, which name the paths of an error."""
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; the error for a misspelt one has a near name."""
        if self.get_command(ctx, args[0]) is None:
            if ctx.parent is None and (command := _command_for(args[0])):
                ctx.fail(f"no command {args[0]!r}; did you mean: {command} {shlex.quote(args[0])}")
            if near := near_name(args[0], self.list_commands(ctx)):
                ctx.fail(f"no command {args[0]!r}; {near}")
        return super().resolve_command(ctx, args)

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
            command = self.get_command(ctx, str(ctx.invoked_subcommand))
            restarts = isinstance(command, Restarted) and command.restarts(ctx.meta[_WORDS])
            how = "restart" if restarts else "resume"
            text = f"stopped; run the same command again to {how}"
            raise Failure(text, 128 + stop.signal_number) from stop
        except BrokenPipeError:
            raise  # the reader has closed the pipe, as "| head" does; click exits quietly
        except OSError as error:
            # filename2 is the target of a copy or a rename
            name = error.filename2 or error.filename  # none of a write to a full disk
            remedy = _REMEDIES.get(error.errno or 0, "check the path, then run the command again")
            near = did_you_mean(Path(name)) if name and error.errno == errno.ENOENT else ""
            text = f"{error.strerror or error}{f': {name!r}' if name else ''}; {remedy}{near}"
            raise Failure(text, EXIT_ERROR) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            failed = device_failure(error) or failed_plug_in(error)
            if failed is None:
                raise
            logger.debug("the device or the code of a plug-in failed", exc_info=error)
            raise Failure(str(failed), EXIT_ERROR) from error
        finally:  # tests and notebooks call this in a process that lives on
            for number, handler in before.items():
                signal.signal(number, handler)


class LazyCommands(Commands):
    """Command group that imports a command when it is run, so that help imports none of them.

    sections: title -> (package of the commands, {name: summary}). The command is the attribute of
    its name in the module of its name.
    """

    def __init__(
        self, *arguments: Any, sections: Mapping[str, tuple[str, Mapping[str, str]]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.sections = sections
        self._packages = {
            name: package for package, summaries in sections.values() for name in summaries
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, section by section."""
        return list(self._packages)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self.commands and cmd_name in self._packages:
            module = import_module(f"{self._packages[cmd_name]}.{cmd_name}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries, section by section."""
        width = max(map(len, self._packages))
        for title, (_, summaries) in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in summaries.items()])


def _command_for(word: str) -> str | None:
    """Return the command that takes a file in place of a command, None for any other word."""
    suffix = Path(word).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return "a2 run -c"
    is_image = suffix in IMAGE_SUFFIXES or "://" in word or Path(word).exists()
    return "a2 caption" if is_image else None


def _move_example_to_the_end(command: click.Command) -> None:
    text, mark, example = cleandoc(command.help or "").partition("\b\nExample:")
    if mark:  # a nested group comes here twice
        command.help, command.epilog = text, mark + example
