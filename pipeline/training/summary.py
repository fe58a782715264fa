"""What a training did: why it ended, its best epoch, and its learning rates (`training.json`)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.pipeline.engine.artifact_names import TRAINING
from a2cap.pipeline.training.selection import Selection


@dataclass(frozen=True)
class TrainingSummary:
    """What a finished training did.

    epochs, updates: that it made, of at most `most_epochs`.
    patience: epochs without a better score after which it ended, None if it made all epochs.
    best_epoch: the epoch that was kept, by its `score`, the figure `selected_by`.
    first_lr, last_lr: of the first and the last update.
    warmup_updates: updates of it in the warm-up.
    data: numbers of what it was trained on, such as images and captions.
    """

    epochs: int
    most_epochs: int
    updates: int
    patience: int | None
    best_epoch: int
    selected_by: str
    score: float
    first_lr: float
    last_lr: float
    warmup_updates: int
    data: Mapping[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """Format it as one sentence."""
        reason = (
            "all were made"
            if self.patience is None
            else f"no better {self.selected_by} in {self.patience}"
        )
        share = self.warmup_updates / max(self.updates, 1)
        return (
            f"ended after epoch {self.epochs} of {self.most_epochs} ({reason}); best epoch "
            f"{self.best_epoch}, {self.selected_by} {self.score:.3f}; learning rate "
            f"{self.first_lr:.2g} to {self.last_lr:.2g}, {share:.0%} of {self.updates:,} updates "
            "in the warm-up"
        )

    @property
    def data_text(self) -> str:
        """What it was trained on, such as "1,000 images, 5,000 captions"."""
        names = sorted(self.data, key=lambda name: (name != "images", name))
        return ", ".join(f"{self.data[name]:,} {name}" for name in names)

    def write(self, directory: Path) -> None:
        """Write `training.json` into the folder of the result."""
        write_json(directory / TRAINING, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> "TrainingSummary | None":
        """Read the summary of a result; None if it has none that can be read."""
        try:
            content: Any = read_json(directory / TRAINING)
            summary = cls(**content)
            # a value of another type fails when it is formatted
            summary.sentence(), summary.data_text
        except (InputError, TypeError, ValueError, AttributeError):
            return None
        return summary


def zero_warning(selection: Selection, score: str) -> str:
    """Return the sentence about a training in which no epoch had a score above 0."""
    return (
        f"validation {score} was 0 in every epoch, so epoch {selection.epoch} was kept by its "
        "validation loss, and its captions say little or nothing of the images; train longer, "
        "validate on more images, or select by loss"
    )
