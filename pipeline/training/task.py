"""The interface between the training loop and what it trains: a captioner or a detector."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from a2cap.data.batches.loader import EpochDataset, Share, batches_per_epoch, epoch_batches
from a2cap.pipeline.training.config import TrainingConfig
from a2cap.pipeline.training.optimizer import Optimizer, Part

Element = TypeVar("Element")


@dataclass(frozen=True)
class Batches(Generic[Element, Part]):
    """One rank's share of the batches of a training."""

    dataset: EpochDataset[Element]
    collate: Callable[[Sequence[Element]], Part]
    config: TrainingConfig
    share: Share
    workers: int
    pin_memory: bool = False
    groups: NDArray[np.int64] | None = None  # of the items, which are not mixed in a batch
    parts: NDArray[np.int64] | None = None  # of the items, to read one part after the other
    window: int | None = None  # in which that order is shuffled

    def __len__(self) -> int:
        return batches_per_epoch(
            self.dataset, batch_size=self.config.batch_size, groups=self.groups
        )

    def epoch(self, epoch: int, *, start: int) -> Iterator[list[Part]]:
        """Yield the parts of each batch from number `start` on; epochs count from 0."""
        return epoch_batches(
            self.dataset,
            self.collate,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            start=start,
            share=self.share,
            groups=self.groups,
            parts=self.parts,
            window=self.window,
            workers=self.workers,
            pin_memory=self.pin_memory,
        )


class Validation(Protocol):
    """Quality of the network after an epoch."""

    @property
    def score(self) -> str:
        """Name of the figure that selects the best epoch."""

    @property
    def start(self) -> float | None:
        """The score of the network that is trained further, None for a new one."""

    def figures(self) -> dict[str, float]:
        """Return the figures by name, equal on all ranks; every rank must call this."""

    def scalars(self) -> dict[str, float]:
        """Return more figures for TensorBoard; called on the main rank only."""

    def warn(self, line: Mapping[str, float]) -> None:
        """Log a warning if the epoch's figures show a failing training; on the main rank only."""


@dataclass(frozen=True)
class TrainingTask(Generic[Part]):
    """One training: the network, its data, its updates and its validation."""

    section: str  # of the configuration; for error messages, like the command
    command: str
    unit: str  # of `Update.amount`, for the reported speed
    config: TrainingConfig
    network: nn.Module
    batches: Batches[Any, Part]
    optimizer: Optimizer[Part]
    validation: Validation
