"""Training under torchrun: rank 0 runs the command, the other ranks join its trainings.

Only rank 0 runs stages, so that locks, keys and results are those of a single process. It
broadcasts each training as a job; the other ranks run the same job without writing anything.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.launch import launch

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SECONDS_BETWEEN_POLLS = 0.1
_CONNECTION_TIMEOUT = timedelta(minutes=5)
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait of a rank for the others within a training, for example for a checkpoint."""


@dataclass(frozen=True)
class Job:
    """A training that all ranks run: its stage, its settings as plain JSON, and its directory."""

    stage: str
    settings: dict[str, Any]
    directory: str

    @property
    def path(self) -> Path:
        """The directory of the training."""
        return Path(self.directory)


class JobQueue:
    """Jobs of rank 0 in order, kept in a store of torch.distributed; None ends the queue."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._count = 0

    def put(self, job: Job | None) -> None:
        """Append a job."""
        self._store.set(self._next_key(), json.dumps(job and asdict(job)))

    def wait(self) -> Job | None:
        """Return the next job as soon as it is there."""
        # polls, since a signal would not end a blocking wait of the store
        key = self._next_key()
        while not self._store.check([key]):
            time.sleep(_SECONDS_BETWEEN_POLLS)
        content = json.loads(self._store.get(key))
        return None if content is None else Job(**content)

    def _next_key(self) -> str:
        self._count += 1
        return f"job {self._count}"


_QUEUE: ContextVar[JobQueue | None] = ContextVar("queue", default=None)


@contextmanager
def main_rank(runtime: RuntimeConfig) -> Iterator[None]:
    """Let the other ranks join the trainings of the block; they end with it."""
    with _connected(runtime) as queue:
        token = _QUEUE.set(queue)
        try:
            yield
        finally:
            _QUEUE.reset(token)
            queue.put(None)


def broadcast_job(job: Job) -> None:
    """Start a job on the other ranks; do nothing on them, or if there are none."""
    # stages call it everywhere; only `main_rank` sets a queue
    queue = _QUEUE.get()
    if queue is not None:
        queue.put(job)


def join_jobs(runtime: RuntimeConfig, run: Callable[[Job, RuntimeConfig], None]) -> None:
    """Run every job that rank 0 broadcasts, until its queue ends."""
    # rank 0 reports progress for all
    logging.getLogger().setLevel(logging.WARNING)
    with _connected(runtime) as queue:
        while (job := queue.wait()) is not None:
            run(job, runtime)


@contextmanager
def _connected(runtime: RuntimeConfig) -> Iterator[JobQueue]:
    """Connect all ranks in torch's default process group for the block."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from a2cap.pipeline.runtime.device import prepare_device

    device = prepare_device(runtime)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, count = next(iter(rendezvous("env://", timeout=_CONNECTION_TIMEOUT)))
    # torchrun keeps its store when it starts the ranks again, with addresses and jobs of the dead
    attempt = PrefixStore(f"attempt {launch().restarts}", store)
    dist.init_process_group(
        # values are exchanged on the CPU, gradients on the GPU
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=PrefixStore("group", attempt),
        rank=rank,
        world_size=count,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    yield JobQueue(PrefixStore("jobs", attempt))
    # not after an error: it could wait for ranks that are gone, and the process ends anyway
    dist.destroy_process_group()
