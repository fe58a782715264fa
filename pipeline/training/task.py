"""The interface between the training loop and what it trains: a captioner or a detector."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import nn

from a2cap.pipeline.training.config import TrainingConfig
from a2cap.pipeline.training.optimizer import Optimizer

Part = TypeVar("Part")


class Batches(Protocol[Part]):
    """Batches of one epoch, split into parts."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, *, start: int) -> Iterator[list[Part]]:
        """Yield this rank's parts of each batch from number `start` on; epochs count from 0."""


class Validation(Protocol):
    """Quality of the network after an epoch."""

    @property
    def score(self) -> str:
        """Name of the figure that selects the best epoch."""

    def figures(self) -> dict[str, float]:
        """Return the figures by name, equal on all ranks; every rank must call this."""

    def scalars(self) -> dict[str, float]:
        """Return more figures for TensorBoard; called on the main rank only."""

    def warn(self, line: Mapping[str, float]) -> None:
        """Log a warning if the epoch's figures show a failing training; on the main rank only."""


@dataclass(frozen=True)
class TrainingTask(Generic[Part]):
    """One training: the network, its data, its updates and its validation.

    section: of the configuration, and command: that trains, both for error messages; unit: of
    `Update.amount`, for the reported speed.
    """

    section: str
    command: str
    unit: str
    config: TrainingConfig
    network: nn.Module
    batches: Batches[Part]
    optimizer: Optimizer[Part]
    validation: Validation
