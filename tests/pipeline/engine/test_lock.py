"""The lock of a stage: one holder, named; looking is no holding; the dead hold nothing."""

import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

from a2cap.data.errors import LockedError
from a2cap.pipeline.engine.lock import is_locked, lock_holder, stage_lock


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "my stages" / "key.lock"


def test_the_holder_is_named_while_it_holds_and_not_after(lock):
    with stage_lock(lock, what="train-xe"):
        assert is_locked(lock)
        said = lock_holder(lock)
        with pytest.raises(LockedError) as raised, stage_lock(lock, what="train-xe"):
            pytest.fail("two hold one lock")
    assert re.fullmatch(
        rf"process {os.getpid()} on {re.escape(socket.gethostname())} since "
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d",
        said,
    )
    assert str(raised.value) == f"train-xe is already running: {said}; wait for it, or stop it"
    assert not is_locked(lock)
    assert not lock.with_suffix(".holder.json").exists()


def test_a_lock_that_was_never_taken_is_free(lock):
    assert not is_locked(lock)
    assert not lock.exists()


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '"text"', '{"pid": 1'])
def test_a_holder_that_cannot_be_read_has_just_started(lock, content):
    lock.parent.mkdir()
    if content is not None:
        lock.with_suffix(".holder.json").write_text(content)
    assert lock_holder(lock) == "a process that has just started"


def test_an_error_frees_the_lock(lock):
    with pytest.raises(ZeroDivisionError), stage_lock(lock, what="count"):
        raise ZeroDivisionError
    assert not is_locked(lock)


def test_who_only_looks_for_a_moment_refuses_nobody(lock):
    with stage_lock(lock, what="count"):
        pass
    looking = threading.Event()

    def look():
        with stage_lock(lock, what="a look"):
            looking.set()
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    with stage_lock(lock, what="count"):
        assert is_locked(lock)
    thread.join()


HOLD = """
import sys, time
from pathlib import Path
from a2cap.pipeline.engine.lock import stage_lock
with stage_lock(Path(sys.argv[1]), what="count"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_blocks_nobody_and_is_not_named_for_the_next(lock):
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert f"process {process.pid} on " in lock_holder(lock)
        process.kill()
    assert not is_locked(lock)
    with stage_lock(lock, what="count"):
        assert f"process {os.getpid()} on " in lock_holder(lock)


def test_a_lock_holds_where_its_holder_cannot_be_written_down(lock):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # as on a full disk
    try:
        with stage_lock(lock, what="count"):
            assert is_locked(lock)
            assert lock_holder(lock) == "a process that has just started"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not is_locked(lock)
