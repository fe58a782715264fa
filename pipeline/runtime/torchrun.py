"""Ranks of a command under torchrun: each runs the same command.

Rank 0 takes the locks, publishes and writes. When the work of a training begins, it announces the
folder and the inputs to the other ranks, which enter the same work and write nothing.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.pipeline.runtime.launch import launch
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SECONDS_BETWEEN_POLLS = 0.1
_CONNECTION_TIMEOUT = timedelta(minutes=5)
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait of a rank for the others within a training, for example for a checkpoint."""


@dataclass(frozen=True)
class Announcement:
    """The work that rank 0 begins: a stage, its partial directory, and its inputs by name."""

    stage: str
    folder: str
    inputs: Mapping[str, str]


class RankGroup:
    """The ranks of one command, with the announcements of rank 0 in torch's key-value store."""

    def __init__(self, store: "Store", rank: int) -> None:
        self._store = store
        self.is_main = rank == 0
        self._count = 0

    def announce(self, stage: str, folder: Path, inputs: Mapping[str, Path]) -> None:
        """Let the other ranks enter the work of a stage."""
        paths = {name: str(path) for name, path in inputs.items()}
        self._put(Announcement(stage, str(folder), paths))

    def end(self) -> None:
        """Let the other ranks end their command."""
        self._put(None)

    def announced(self) -> Iterator[Announcement]:
        """Yield the announcements of rank 0 as they come, until its command ends."""
        while True:
            # polls: a wait may last hours, and a signal would not end one of the store
            key = self._next_key()
            while not self._store.check([key]):
                time.sleep(_SECONDS_BETWEEN_POLLS)
            content = json.loads(self._store.get(key))
            if content is None:
                return
            yield Announcement(**content)

    def _put(self, found: Announcement | None) -> None:
        self._store.set(self._next_key(), json.dumps(found and asdict(found)))

    def _next_key(self) -> str:
        self._count += 1
        return f"announcement {self._count}"


@contextmanager
def connected(runtime: RuntimeConfig) -> Iterator[RankGroup]:
    """Connect all ranks in torch's default process group for the block."""
    import torch
    from torch.distributed.rendezvous import rendezvous

    from a2cap.pipeline.runtime.device import prepare_device

    dist = torch.distributed.distributed_c10d
    device = prepare_device(runtime)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting = rendezvous("env://", timeout=_CONNECTION_TIMEOUT)
    store, rank, count = next(iter(meeting))
    # torchrun keeps its store when it starts the ranks again, with the keys of the dead
    attempt = dist.PrefixStore(f"attempt {launch().restarts}", store)
    dist.init_process_group(
        # values are exchanged on the CPU, gradients on the GPU
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore("group", attempt),
        rank=rank,
        world_size=count,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    group = RankGroup(dist.PrefixStore("announcements", attempt), rank)
    try:
        yield group
    finally:
        if group.is_main:
            group.end()
    # not after an error: it could wait for ranks that are gone, and the process ends anyway
    dist.destroy_process_group()
