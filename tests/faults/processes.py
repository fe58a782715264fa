"""Forked processes, which start at once because their parent has imported everything."""

import faulthandler
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted


@dataclass(frozen=True)
class ProcessExit:
    """Id, exit code (or negative signal number) and lifetime of an ended process."""

    process: int
    code: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Return whether a signal ended it, or `Interrupted` by one."""
        return self.code < 0 or self.code in STOPPED


STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of runs that a signal has stopped."""


def run(
    work: Callable[[], object],
    *,
    log: Path,
    kill_after: float | None = None,
    sent: signal.Signals = signal.SIGKILL,
    timeout: float = 300.0,
) -> ProcessExit:
    """Fork a process that does `work` and writes to `log`; signal it after `kill_after` seconds.

    After `timeout` seconds it ends with code 1, and the log contains the stack of each thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        _child(work, log, timeout)
    if kill_after is not None:
        descriptor = os.pidfd_open(process)
        select.select([descriptor], [], [], kill_after)  # until its end, if that comes first
        os.close(descriptor)
        os.kill(process, sent)  # before waitpid, so the id cannot be reused
    _, status = os.waitpid(process, 0)
    return ProcessExit(process, os.waitstatus_to_exitcode(status), time.monotonic() - started)


def _child(work: Callable[[], object], log: Path, timeout: float) -> None:
    code = 1
    try:
        os.setpgid(0, 0)  # identifies its child processes, also after its death
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.dump_traceback_later(timeout, exit=True, file=2)  # from a thread without GIL
        for number in (signal.SIGINT, signal.SIGTERM):  # as the commands do
            signal.signal(number, raise_interrupted)
        work()
        code = 0
    except Interrupted as stop:
        code = 128 + stop.signal_number
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def orphans(group: int, *, timeout: float) -> list[int]:
    """Return ids of a dead run's processes that are alive after `timeout` seconds (Linux only)."""
    deadline = time.monotonic() + timeout
    while (alive := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _members(group: int) -> list[int]:
    return [process for process, _, its_group in _alive() if its_group == group]


def _alive() -> Iterator[tuple[int, int, int]]:
    """Yield id, parent and group of every process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state != "Z":
            yield int(path.parent.name), int(parent), int(group)
