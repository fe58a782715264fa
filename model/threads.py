"""Work on a CPU in threads, for networks whose matrices are small."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Value = TypeVar("Value")


def map_in_threads(work: Callable[[Part], Value], parts: Sequence[Part]) -> list[Value]:
    """Map parts in as many threads as torch has, with one thread of torch each.

    Torch's own threads would wait for each other in every operation; a single part has them.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) < 2:
        return list(map(work, parts))
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with pool:
            return list(pool.map(work, parts))
    finally:
        torch.set_num_threads(threads)  # a new thread starts with the number that was set last
