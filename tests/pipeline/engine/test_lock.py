"""Stage locks: one holder with a description, released when the holder dies."""

import errno
import fcntl
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from a2cap.data.errors import LockedError
from a2cap.pipeline.engine import lock as locking
from a2cap.pipeline.engine.lock import (
    is_locked,
    is_read,
    lock_holder,
    read_lock,
    require_unread,
    stage_lock,
)
from a2cap.pipeline.engine.prepared_stage import StagePaths
from tests.data.messages import message_of
from tests.file_sizes import limited_to


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "my stages" / "key.lock"


@pytest.mark.slow
def test_the_holder_is_described_only_while_it_holds_the_lock(lock):
    with stage_lock(lock, what="train-xe"):
        assert is_locked(lock)
        description = lock_holder(lock)
        with pytest.raises(LockedError) as raised, stage_lock(lock, what="train-xe"):
            pytest.fail("two hold one lock")
    assert re.fullmatch(
        rf"process {os.getpid()} on {re.escape(socket.gethostname())} since "
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d",
        description,
    )
    assert (
        str(raised.value) == f"train-xe is already running: {description}; wait for it, or stop it"
    )
    assert not is_locked(lock)
    assert not lock.with_suffix(".holder.json").exists()


def test_a_lock_that_was_never_held_is_free(lock):
    assert not is_locked(lock)
    assert not lock.exists()


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '"text"', '{"pid": 1'])
def test_a_holder_with_an_unreadable_description_has_just_started(lock, content):
    lock.parent.mkdir()
    if content is not None:
        lock.with_suffix(".holder.json").write_text(content)
    assert lock_holder(lock) == "a process that has just started"


def test_a_brief_check_of_the_lock_does_not_block_a_run(lock, monkeypatch):
    checking, refused = threading.Event(), threading.Event()

    def check():
        with stage_lock(lock, what="a check"):
            checking.set()
            refused.wait(600)

    thread = threading.Thread(target=check)

    def end_check(seconds):
        refused.set()
        thread.join()

    thread.start()
    checking.wait()
    monkeypatch.setattr(time, "sleep", end_check)  # of the library, between two attempts
    with stage_lock(lock, what="count"):
        assert is_locked(lock)
    assert refused.is_set()


HOLD = """
import sys
from pathlib import Path
from a2cap.pipeline.engine.lock import stage_lock
with stage_lock(Path(sys.argv[1]), what="count"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_holder_releases_the_lock(lock):
    command = [sys.executable, "-c", HOLD, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert f"process {process.pid} on " in lock_holder(lock)
        process.kill()
    assert not is_locked(lock)
    with stage_lock(lock, what="count"):
        assert f"process {os.getpid()} on " in lock_holder(lock)


def test_a_lock_works_on_a_full_disk(lock):
    with limited_to(0), stage_lock(lock, what="count"):
        assert is_locked(lock)
        assert lock_holder(lock) == "a process that has just started"
    assert not is_locked(lock)


def test_a_folder_is_read_while_a_reader_is_inside_it(tmp_path):
    result = tmp_path / "result"
    for folder in (result, tmp_path / "another"):
        folder.mkdir()
    for path in (result, result / "file"):
        with read_lock(path):
            assert is_read(tmp_path)
            assert is_read(result)
            assert not is_read(tmp_path / "another")
        assert not is_read(tmp_path)


def test_a_file_system_without_locks_of_folders_has_no_readers(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with read_lock(tmp_path):
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert not is_read(tmp_path)


def test_the_lock_of_a_relative_path_is_held(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with stage_lock(Path("my features.lock"), what="extract"):
        assert is_locked(Path("my features.lock"))


def test_the_locks_of_an_artifacts_folder_are_in_one_folder(tmp_path):
    locks = tmp_path / ".locks" / "train"
    assert StagePaths(tmp_path / "train" / "ab", shared=True).lock == locks / "ab.lock"


def test_a_system_without_file_locks_is_asked_by_filelock(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "HAS_LOCKS", False)
    monkeypatch.setattr(locking, "locked", lambda path, **how: nullcontext())
    with stage_lock(tmp_path / "stage.lock", what="a test"):
        assert is_locked(tmp_path / "stage.lock")
    assert not is_locked(tmp_path / "stage.lock")


def test_a_folder_that_is_read_is_named(tmp_path):
    with read_lock(tmp_path):
        assert message_of(require_unread, tmp_path, error=LockedError) == (
            f"{str(tmp_path)!r} is read by another process; wait for it, or stop it"
        )
    require_unread(tmp_path)
