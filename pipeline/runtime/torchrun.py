"""Training by the processes that torchrun started: the first runs the command, the others join.

Only the first process runs stages, so that locks, keys and results are those of a single process.
It announces each training that it begins; the others do their share of it, until the first says
that there is no more to do.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from a2cap.pipeline.runtime.config import RuntimeConfig

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Announcement = dict[str, Any]
Join = Callable[[Announcement, RuntimeConfig], None]

_SECONDS_BETWEEN_LOOKS = 0.1
_CONNECTION = timedelta(minutes=5)
"""How long processes wait for each other at the start."""
_PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others in the middle of a training, say for a checkpoint."""


class Announcements:
    """What the first process has told the others, in order; None is that there is no more."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._count = 0

    def give(self, announcement: Announcement | None) -> None:
        """Tells the others."""
        self._store.set(self._next_key(), json.dumps(announcement))

    def wait(self) -> Announcement | None:
        """The next one; looks again and again, so that a signal ends the wait at once."""
        key = self._next_key()
        while not self._store.check([key]):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        found: Announcement | None = json.loads(self._store.get(key))
        return found

    def _next_key(self) -> str:
        self._count += 1
        return f"announcement {self._count}"


_LED: ContextVar[Announcements | None] = ContextVar("led", default=None)


@contextmanager
def leading(runtime: RuntimeConfig) -> Iterator[None]:
    """For the block, the other processes take part in what is announced; then they end."""
    with _connected(runtime) as announcements:
        led = _LED.set(announcements)
        try:
            yield
        finally:
            _LED.reset(led)
            announcements.give(None)


def announce(announcement: Announcement) -> None:
    """Calls the other processes to a training, if this one leads any."""
    announcements = _LED.get()
    if announcements is not None:
        announcements.give(announcement)


def follow(runtime: RuntimeConfig, join: Join) -> None:
    """Takes part in every training that the first process announces, until there is no more."""
    logging.getLogger().setLevel(logging.WARNING)
    with _connected(runtime) as announcements:
        while (announcement := announcements.wait()) is not None:
            join(announcement, runtime)


@contextmanager
def _connected(runtime: RuntimeConfig) -> Iterator[Announcements]:
    """Torch's default group of all processes for the block, and the way to announce."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from a2cap.pipeline.runtime.device import prepare_device

    device = prepare_device(runtime)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, processes = next(iter(rendezvous("env://", timeout=_CONNECTION)))
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=processes,
        timeout=_PATIENCE,
    )
    yield Announcements(PrefixStore("announcements", store))
    # not after an error: with others gone it could wait for them, and the process ends anyway
    dist.destroy_process_group()
