"""What one phase of training is to the epochs that run it: cross-entropy, or self-critical."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from a2.data.batches import Batch, CaptionDataset
from a2.pipeline.config import ScstConfig, TrainConfig


class Update(Protocol):
    """What one update measured, over the whole batch."""

    @property
    def number(self) -> int:
        """1 is the first."""

    @property
    def image_ids(self) -> tuple[str, ...]:
        """The pictures of this process."""

    @property
    def tokens(self) -> int:
        """Target tokens, <eos> included."""

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers."""

    def reported(self) -> dict[str, float]:
        """What the epoch's line holds the mean of."""

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""

    def in_words(self) -> str:
        """Losses and gradient norm, for an error."""


class Optimisation(Protocol):
    """What a phase of training does with a batch: cross-entropy, or self-critical."""

    def step(self, parts: Sequence[Batch], number: int) -> Sequence[Update]:
        """Update `number` (1 is the first); returns what is read of it and those before it."""

    def read(self) -> Sequence[Update]:
        """What the updates measured that have not been read yet."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on beside the captioner and the random states."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up such a state."""


Settings = TrainConfig | ScstConfig
"""How long a phase trains, and how it is validated."""


@dataclass(frozen=True)
class Phase:
    """One phase of training: which pictures, what an update does with them, and how long.

    section: of the configuration, named by errors.
    """

    section: str
    settings: Settings
    dataset: CaptionDataset
    optimisation: Optimisation
