"""Ranks of a command under torchrun: each runs the same command.

Rank 0 takes the locks, publishes and writes. When the work of a training begins, it announces the
folder and the inputs to the other ranks, which enter the same work and write nothing.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SECONDS_BETWEEN_POLLS = 0.1


@dataclass(frozen=True)
class ProcessRank:
    """Rank of this process among all ranks, and among those on its machine.

    restarts: how often torchrun has started all ranks again.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    restarts: int = 0


def process_rank(environment: Mapping[str, str] = os.environ) -> ProcessRank:
    """Return rank and world size from torchrun's environment; 0 of 1 without it."""
    # RANK alone is not enough: a shell may have inherited it
    if "TORCHELASTIC_RUN_ID" not in environment:
        return ProcessRank()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, ranks, local_rank, local_ranks = (int(environment[name]) for name in names)
    restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return ProcessRank(rank, ranks, local_rank, local_ranks, restarts)


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

    def _put(self, announcement: Announcement | None) -> None:
        self._store.set(self._next_key(), json.dumps(announcement and asdict(announcement)))

    def _next_key(self) -> str:
        self._count += 1
        return f"announcement {self._count}"
