"""Launch of this process by torchrun: its rank and the number of ranks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """What torchrun says of this process: its number among all, and on its own machine."""

    rank: int = 0
    processes: int = 1
    local_rank: int = 0
    local_processes: int = 1

    @property
    def together(self) -> bool:
        """Whether there are other processes."""
        return self.processes > 1


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """How this process was started; alone where torchrun did not do it.

    The mark of torchrun is asked for because a RANK that was left behind in a shell says nothing.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return Launch()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return Launch(*(int(environment[name]) for name in names))
