"""Ranks of a command under torchrun: rank 0 announces its work, the others enter it."""

import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from a2cap.pipeline.runtime import torchrun
from a2cap.pipeline.runtime.rank_group import Announcement, ProcessRank, RankGroup, process_rank
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.runtime.torchrun import connected

STARTED = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
CPU = RuntimeConfig(device="cpu")
WORK = ("train-xe", Path("a"), {"features": Path("b")})
ANNOUNCED = Announcement("train-xe", "a", {"features": "b"})


def test_torchrun_sets_rank_and_number_of_ranks():
    assert process_rank(STARTED) == ProcessRank(
        rank=5, ranks=8, local_rank=1, local_ranks=4, restarts=2
    )


@pytest.mark.parametrize("name", [None, "TORCHELASTIC_RUN_ID"])
def test_without_torchrun_there_is_one_rank_even_if_a_shell_inherited_its_variables(name):
    inherited = {key: value for key, value in STARTED.items() if name and key != name}
    assert process_rank(inherited) == ProcessRank()
    assert ProcessRank().ranks == 1


def test_announcements_arrive_in_order_until_the_command_of_rank_0_ends():
    store = dist.HashStore()
    main, other = RankGroup(store, 0), RankGroup(store, 1)
    main.announce(*WORK)
    main.announce("train-scst", Path("c"), {})
    main.end()
    assert list(other.announced()) == [ANNOUNCED, Announcement("train-scst", "c", {})]
    assert (main.is_main, other.is_main) == (True, False)


@pytest.mark.slow
def test_a_rank_waits_for_the_next_announcement():
    store, heard = dist.HashStore(), []
    waiting = threading.Thread(target=lambda: heard.append(next(RankGroup(store, 1).announced())))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    RankGroup(store, 0).announce(*WORK)
    waiting.join(20)
    assert heard == [ANNOUNCED]


@pytest.fixture
def other(monkeypatch):
    """Make a rendezvous of this process alone, once restarted; return another rank's view."""
    for name, value in {**STARTED, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    store = dist.HashStore()
    for number in range(2):  # the announcements of each attempt that died are still there
        attempt = dist.PrefixStore(f"attempt {number}", store)
        RankGroup(dist.PrefixStore("announcements", attempt), 0).end()
    monkeypatch.setattr(torchrun, "rendezvous", lambda *_, **__: iter([(store, 0, 1)]))
    return RankGroup(dist.PrefixStore("announcements", dist.PrefixStore("attempt 2", store)), 1)


def test_rank_0_announces_its_work_and_then_the_end(other):
    with connected(CPU) as group:
        assert dist.is_initialized()
        group.announce(*WORK)
    assert not dist.is_initialized()
    assert list(other.announced()) == [ANNOUNCED]


def test_the_other_ranks_end_after_an_error_of_rank_0_too(other):
    with pytest.raises(ZeroDivisionError), connected(CPU):
        raise ZeroDivisionError
    dist.destroy_process_group()
    assert list(other.announced()) == []
