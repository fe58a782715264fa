"""Connection of the ranks that torchrun has started."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.distributed import distributed_c10d as dist
from torch.distributed.rendezvous import rendezvous

from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.rank_group import RankGroup, process_rank
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

_CONNECTION_TIMEOUT = timedelta(minutes=5)
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait of a rank for the others within a training, for example for a checkpoint."""


@contextmanager
def connected(runtime: RuntimeConfig) -> Iterator[RankGroup]:
    """Connect all ranks in torch's default process group for the block."""
    device = prepare_device(runtime)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting = rendezvous("env://", timeout=_CONNECTION_TIMEOUT)
    store, rank, count = next(iter(meeting))
    # torchrun keeps its store when it starts the ranks again, with the keys of the dead
    attempt = dist.PrefixStore(f"attempt {process_rank().restarts}", store)
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
