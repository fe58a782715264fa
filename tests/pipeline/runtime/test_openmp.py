"""Threads that wait for work sleep at once only where others want the cores."""

import pytest

from a2cap.pipeline.runtime import openmp as waiting_threads
from a2cap.pipeline.runtime.openmp import set_waiting

IDLE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}
BUSY = {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture
def loads(tmp_path, monkeypatch):
    """The kernel's file of loads, not there yet, of a machine with 8 cores."""
    monkeypatch.setattr(waiting_threads, "_LOADS", tmp_path / "loadavg")
    monkeypatch.setattr(waiting_threads.os, "cpu_count", lambda: 8)
    return tmp_path / "loadavg"


@pytest.mark.parametrize(("running", "expected"), [(1, IDLE), (3, IDLE), (4, BUSY), (20, BUSY)])
def test_threads_look_out_for_work_where_cores_are_idle(loads, running, expected):
    loads.write_text(f"0.10 0.20 0.30 {running}/345 6789\n")
    environment: dict[str, str] = {}
    set_waiting(environment)
    assert environment == expected


@pytest.mark.parametrize("content", [None, "", "0.1 0.2 0.3 many/345 6789\n"])
def test_where_nobody_knows_they_sleep(loads, content):
    if content is not None:
        loads.write_text(content)
    environment: dict[str, str] = {}
    set_waiting(environment)
    assert environment == BUSY


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_a_user_has_set_stays(loads, name):
    loads.write_text("0.10 0.20 0.30 1/345 6789\n")
    environment = {name: "7"}
    set_waiting(environment)
    assert environment == {name: "7"}
