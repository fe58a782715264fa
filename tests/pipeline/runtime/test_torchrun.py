"""Tests of jobs under torchrun: rank 0 broadcasts them, the other ranks run them."""

import sys
import threading

import pytest
import torch.distributed as dist

from a2cap.pipeline.runtime import torchrun
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.launch import Launch, launch
from a2cap.pipeline.runtime.torchrun import Job, JobQueue, broadcast_job

STARTED = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
ONE, TWO = Job("one", {}, "a"), Job("two", {"features": "a/b", "seed": 1}, "b")
CPU = RuntimeConfig(device="cpu")


def test_torchrun_sets_rank_and_number_of_ranks():
    assert launch(STARTED) == Launch(rank=5, ranks=8, local_rank=1, local_ranks=4, restarts=2)


@pytest.mark.parametrize("name", [None, "TORCHELASTIC_RUN_ID"])
def test_without_torchrun_there_is_one_rank_even_if_a_shell_inherited_its_variables(name):
    inherited = {key: value for key, value in STARTED.items() if name and key != name}
    assert launch(inherited) == Launch()
    assert Launch().ranks == 1


def test_jobs_arrive_in_order():
    store = dist.HashStore()
    main, other = JobQueue(store), JobQueue(store)
    for job in (ONE, TWO, None):
        main.put(job)
    assert [other.wait() for _ in range(3)] == [ONE, TWO, None]


@pytest.mark.slow
def test_a_rank_waits_for_the_next_job():
    store, found = dist.HashStore(), []
    waiting = threading.Thread(target=lambda: found.append(JobQueue(store).wait()))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    JobQueue(store).put(ONE)
    waiting.join(20)
    assert found == [ONE]


def test_a_single_process_broadcasts_to_nobody(monkeypatch):
    sent = []
    monkeypatch.setattr(JobQueue, "put", lambda queue, job: sent.append(job))
    broadcast_job(ONE)
    assert sent == []


@pytest.fixture
def jobs(monkeypatch):
    """Make a rendezvous of this process alone, once restarted, and return the queue of its jobs."""
    for name, value in {**STARTED, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    store = dist.HashStore()
    for attempt in range(2):  # the queue of each attempt that died is still there
        JobQueue(dist.PrefixStore("jobs", dist.PrefixStore(f"attempt {attempt}", store))).put(None)
    monkeypatch.setattr(
        sys.modules["torch.distributed.rendezvous"],
        "rendezvous",
        lambda *_, **__: iter([(store, 0, 1)]),
    )
    return JobQueue(dist.PrefixStore("jobs", dist.PrefixStore("attempt 2", store)))


def test_rank_0_broadcasts_its_jobs_and_then_the_end(jobs):
    with torchrun.main_rank(CPU):
        assert dist.is_initialized()
        broadcast_job(ONE)
        broadcast_job(TWO)
    assert not dist.is_initialized()
    broadcast_job(Job("three", {}, "c"))
    assert [jobs.wait() for _ in range(3)] == [ONE, TWO, None]


def test_rank_0_broadcasts_the_end_after_an_error_too(jobs):
    with pytest.raises(ZeroDivisionError), torchrun.main_rank(CPU):
        raise ZeroDivisionError
    dist.destroy_process_group()
    assert jobs.wait() is None


def test_the_other_ranks_run_each_job_until_the_end(jobs, caplog):
    for job in (ONE, TWO, None):
        jobs.put(job)
    joined = []
    torchrun.join_jobs(CPU, lambda job, runtime: joined.append((job, runtime)))
    assert joined == [(ONE, CPU), (TWO, CPU)]
    assert not dist.is_initialized()
