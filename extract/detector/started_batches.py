"""Batches of images that a GPU computes while the program goes on."""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.regions import Regions
from a2cap.extract.detector.input import BATCH

logger = logging.getLogger(__name__)

Pending = Callable[[], list[Regions]]
"""An extraction that has started: it waits for the device and returns the regions of each image."""


class StartedBatches:
    """Batches of images, each given by the numbers of its images, and what starts one."""

    def __init__(self) -> None:
        self._most = BATCH

    def start(
        self, batches: Iterable[Sequence[int]], begin: Callable[[Sequence[int]], Pending]
    ) -> Pending:
        """Start all batches; the returned function returns the regions in order of the images."""
        with torch.inference_mode():
            parts = [part for batch in batches for part in self._parts(batch, begin)]

        def finish() -> list[Regions]:
            regions: dict[int, Regions] = {}
            for indices, pending in parts:
                regions.update(zip(indices, pending(), strict=True))
            return [regions[index] for index in sorted(regions)]

        return finish

    def _parts(
        self, indices: Sequence[int], begin: Callable[[Sequence[int]], Pending]
    ) -> list[tuple[Sequence[int], Pending]]:
        """Start a batch, or halves of it where memory does not suffice."""
        half = len(indices) // 2
        if len(indices) <= self._most:
            try:
                return [(indices, begin(indices))]
            except torch.cuda.OutOfMemoryError:
                if half == 0:
                    raise
            self._most = half
            message = "out of memory with %s images together; trying %s"
            logger.warning(message, len(indices), half)
        halves = indices[:half], indices[half:]
        return [part for some in halves for part in self._parts(some, begin)]


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, without waiting for a GPU."""
    is_cuda = device.type == "cuda"
    return (tensor.pin_memory() if is_cuda else tensor).to(device, non_blocking=is_cuda)


def copied(values: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Begin to copy a tensor to the CPU; the returned function waits for it."""
    # only CUDA has an event to wait for
    copy = values.to("cpu", non_blocking=values.is_cuda)
    event = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def wait() -> NDArray[np.float32]:
        if event is not None:
            event.synchronize()
        return copy.numpy()

    return wait
