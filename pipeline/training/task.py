"""What a phase of training is to the epochs that run it: of a captioner, or of a detector."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import nn

Part = TypeVar("Part")
Part_contra = TypeVar("Part_contra", contravariant=True)


class Update(Protocol):
    """What one update measured, over the whole batch."""

    @property
    def number(self) -> int:
        """1 is the first."""

    @property
    def image_ids(self) -> tuple[str, ...]:
        """The images of this process."""

    @property
    def amount(self) -> int:
        """How much was learnt from, in the phase's unit."""

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers."""

    def reported(self) -> dict[str, float]:
        """What the epoch's line holds the mean of; one is `loss`."""

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""

    def in_words(self) -> str:
        """Losses and gradient norm, for an error."""


class Optimisation(Protocol[Part_contra]):
    """What a phase of training does with a batch."""

    def step(self, parts: Sequence[Part_contra], number: int) -> Sequence[Update]:
        """Update `number` (1 is the first); returns what is read of it and those before it."""

    def read(self) -> Sequence[Update]:
        """What the updates measured that have not been read yet."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on beside the network and the random states."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up such a state."""


class Batches(Protocol[Part]):
    """The batches that a phase learns from; their number is that of one epoch."""

    def __len__(self) -> int: ...

    def of_epoch(self, epoch: int, *, start: int) -> Iterator[list[Part]]:
        """The parts of this process of each batch from number `start` on; epochs begin at 0."""


class Validation(Protocol):
    """How good the network is after an epoch."""

    @property
    def score(self) -> str:
        """Name of the figure by which the best epoch is told."""

    def figures(self) -> dict[str, float]:
        """By name, the same in all processes, which call this together."""

    def scalars(self) -> dict[str, float]:
        """More for TensorBoard; the first process alone asks for it."""

    def warn(self, line: Mapping[str, float]) -> None:
        """Says where the epoch's figures show that training is of no use; in the first process."""


class Settings(Protocol):
    """How long a phase trains, and when it saves."""

    @property
    def seed(self) -> int:
        """Seeds the noise of the processes beside the first."""

    @property
    def epochs(self) -> int:
        """Most epochs."""

    @property
    def patience(self) -> int:
        """Epochs without a better score after which training ends."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints."""


@dataclass(frozen=True)
class Phase(Generic[Part]):
    """One phase of training: of which network, on which images, by which updates, how long.

    section: of the configuration, and command: that trains, both named by errors; unit: of what
    updates learn from, whose speed is told.
    """

    section: str
    command: str
    unit: str
    settings: Settings
    network: nn.Module
    batches: Batches[Part]
    optimisation: Optimisation[Part]
    validation: Validation
