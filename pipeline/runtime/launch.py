"""Launch of this process by torchrun: its rank and the number of ranks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """Rank of this process among all ranks, and among those on its machine.

    restarts: how often torchrun has started all ranks again.
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    restarts: int = 0


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return rank and world size from torchrun's environment; 0 of 1 without it."""
    # RANK alone is not enough: a shell may have inherited it
    if "TORCHELASTIC_RUN_ID" not in environment:
        return Launch()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, ranks, local_rank, local_ranks = (int(environment[name]) for name in names)
    restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return Launch(rank, ranks, local_rank, local_ranks, restarts)
