"""Runs in forked processes, which start at once because their parent has imported everything."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class End:
    """How a process ended: its id, exit code or negative signal number, and seconds of life."""

    process: int
    code: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether kill -9 ended it."""
        return self.code == -signal.SIGKILL


def run(work: Callable[[], object], *, log: Path, kill_after: float | None = None) -> End:
    """Forks a process that does `work`, writes to `log`, and is killed after so many seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        _child(work, log)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)  # not yet waited for, so the id is still its own
    _, status = os.waitpid(process, 0)
    return End(process, os.waitstatus_to_exitcode(status), time.monotonic() - started)


def _child(work: Callable[[], object], log: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)  # what it starts is known by its group, also after its death
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def left_running(group: int, *, patience: float) -> list[int]:
    """Processes of a dead run that still live after so many seconds; none outside of Linux."""
    deadline = time.monotonic() + patience
    while (left := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _members(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(path.parent.name))
    return found
