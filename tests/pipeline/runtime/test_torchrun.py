"""The first of torchrun's processes announces, the others join until there is no more."""

import sys
import threading

import pytest
import torch.distributed as dist

from a2cap.pipeline.runtime import torchrun
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.launch import Launch, launch
from a2cap.pipeline.runtime.torchrun import Announcements, announce

STARTED = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}


def test_torchrun_says_which_process_this_is():
    found = launch(STARTED)
    assert found == Launch(rank=5, processes=8, local_rank=1, local_processes=4)
    assert found.together


@pytest.mark.parametrize("gone", [{}, {name: "1" for name in STARTED if name.islower()}])
def test_without_torchrun_a_process_is_alone(gone):
    assert launch(gone) == Launch()
    assert not launch(gone).together


def test_variables_that_were_left_behind_in_a_shell_are_not_torchruns():
    left = {name: value for name, value in STARTED.items() if name != "TORCHELASTIC_RUN_ID"}
    assert launch(left) == Launch()


def test_one_process_of_torchrun_is_alone():
    one = {**STARTED, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert not launch(one).together


def test_announcements_come_in_their_order():
    store = dist.HashStore()
    first, other = Announcements(store), Announcements(store)
    first.give({"stage": "one"})
    first.give({"stage": "two", "inputs": {"features": "a/b"}})
    first.give(None)
    assert [other.wait() for _ in range(3)] == [
        {"stage": "one"},
        {"stage": "two", "inputs": {"features": "a/b"}},
        None,
    ]


def test_who_follows_waits_for_the_announcement():
    store, found = dist.HashStore(), []
    waiting = threading.Thread(target=lambda: found.append(Announcements(store).wait()))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    Announcements(store).give({"stage": "one"})
    waiting.join(20)
    assert found == [{"stage": "one"}]


def test_a_process_alone_announces_to_nobody():
    announce({"stage": "one"})


@pytest.fixture
def group_of_one(monkeypatch):
    """A rendezvous of this process alone, and what it announced."""
    store = dist.HashStore()
    monkeypatch.setattr(
        sys.modules["torch.distributed.rendezvous"],
        "rendezvous",
        lambda *_, **__: iter([(store, 0, 1)]),
    )
    return Announcements(dist.PrefixStore("announcements", store))


def test_the_others_are_told_of_each_training_and_then_of_the_end(group_of_one):
    with torchrun.leading(RuntimeConfig(device="cpu")):
        assert dist.is_initialized()
        announce({"stage": "one"})
        announce({"stage": "two"})
    assert not dist.is_initialized()
    announce({"stage": "three"})
    assert [group_of_one.wait() for _ in range(3)] == [{"stage": "one"}, {"stage": "two"}, None]


def test_the_others_are_told_of_the_end_after_an_error_too(group_of_one):
    with pytest.raises(ZeroDivisionError), torchrun.leading(RuntimeConfig(device="cpu")):
        raise ZeroDivisionError
    dist.destroy_process_group()
    assert group_of_one.wait() is None


def test_who_follows_joins_each_training_until_there_is_no_more(group_of_one, caplog):
    for announcement in ({"stage": "one"}, {"stage": "two"}, None):
        group_of_one.give(announcement)
    joined = []
    runtime = RuntimeConfig(device="cpu")
    torchrun.follow(runtime, lambda what, how: joined.append((what, how)))
    assert joined == [({"stage": "one"}, runtime), ({"stage": "two"}, runtime)]
    assert not dist.is_initialized()
