"""Learning curve of a training: the figures of each epoch, from its metrics.jsonl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2cap.pipeline.training.extended_training import read_epochs

_SELECTING = ("likelihood", "METEOR", "BLEU-4", "AP50", "CIDEr")
"""Figures that may select the best epoch. CIDEr is measured beside any other one."""


@dataclass(frozen=True)
class LearningCurve:
    """Figures of each epoch by name, at least one epoch; epoch 0 is the start, if it was measured.

    `a2 verify` does not check metrics.jsonl: its speeds differ from machine to machine.
    """

    epochs: Sequence[Mapping[str, float]]

    @classmethod
    def read(cls, training: Path) -> "LearningCurve | None":
        """Return the curve of a training, None without a finished epoch or with a damaged file."""
        epochs = [line for line in read_epochs(training) if "epoch" in line]
        return cls(epochs) if any(line["epoch"] for line in epochs) else None

    @property
    def score(self) -> str:
        """Name of the validation figure that selects the best epoch, "" if none was measured."""
        return next((name for name in _SELECTING if name in self.epochs[-1]), "")

    @property
    def best(self) -> int:
        """The epoch whose tensors the training keeps: the first with the highest score."""
        trained = [line for line in self.epochs if line["epoch"] and self.score in line]
        # max returns the first of equal ones
        return int(max(trained, key=lambda line: line[self.score])["epoch"]) if trained else 0

    def value(self, epoch: int) -> float | None:
        """Return the score of an epoch, None if it was not measured."""
        scores = {line["epoch"]: line.get(self.score) for line in self.epochs}
        return scores.get(epoch)

    @property
    def summary(self) -> str:
        """One clause such as "best at epoch 1 of 6"."""
        last = int(self.epochs[-1]["epoch"])
        if not self.best:
            return f"{last} epochs, not validated"
        start = self.value(0)
        before = "" if start is None else f", {self.value(self.best):.3f} from {start:.3f}"
        return f"best at epoch {self.best} of {last}{before}"

    @property
    def lines(self) -> list[str]:
        """A table of the figures, the best epoch marked with "*"."""
        rows = [("epoch", *self.figures)]
        for line in self.epochs:
            mark = "*" if line["epoch"] == self.best else " "
            values = (f"{line[name]:.4g}" if name in line else "–" for name in self.figures)
            rows.append((f"{line['epoch']:.0f}{mark}", *values))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(map(str.rjust, row, widths)) for row in rows]

    @property
    def figures(self) -> list[str]:
        """Names of the figures that are drawn: the loss, what selects, CIDEr, the learning rate."""
        names = dict.fromkeys(("loss", "reward", "validation_loss", self.score, "CIDEr", "lr"))
        return [name for name in names if any(name in line for line in self.epochs)]
