"""Learning curve of a training: the figures of each epoch (metrics.jsonl), and what it did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from a2cap.pipeline.training.extended_training import read_epochs
from a2cap.pipeline.training.selection import FIGURES, VALIDATION_LOSS, Selection
from a2cap.pipeline.training.summary import TrainingSummary

_SELECTING = ("AP50", "mAP", *reversed([*FIGURES.values()]))
"""Figures that may select the best epoch of a detector, an encoder and a captioner, the last of
which measures CIDEr beside any other one."""


@dataclass(frozen=True)
class LearningCurve:
    """Figures of each epoch by name, at least one epoch; epoch 0 is the start, if it was measured.

    training: what the training did, None for one that has not ended. `a2 verify` checks neither
    file: their times differ from machine to machine.
    """

    epochs: Sequence[Mapping[str, float]]
    training: TrainingSummary | None = None

    @classmethod
    def read(cls, training: Path) -> "LearningCurve | None":
        """Return the curve of a training, None without a finished epoch or with a damaged file."""
        lines = [
            {n: v for n, v in line.items() if isinstance(v, int | float) and math.isfinite(v)}
            for line in read_epochs(training)
        ]
        epochs = [line for line in lines if {"epoch", "step"} <= line.keys()]
        if not any(line["epoch"] for line in epochs):
            return None
        return cls(epochs, TrainingSummary.read(training))

    @property
    def selected_by(self) -> str:
        """Name of the validation figure that selects the best epoch, "" if none was measured."""
        return next((name for name in _SELECTING if name in self.epochs[-1]), "")

    @property
    def last(self) -> int:
        """The last epoch."""
        return int(self.epochs[-1]["epoch"])

    @property
    def best(self) -> int:
        """The epoch whose tensors the training keeps, 0 without validation."""
        name = self.selected_by
        lines = [line for line in self.epochs if line["epoch"] and name in line]
        best = reduce(lambda s, line: s.after(line, score=name, warmup=0), lines, Selection())
        return best.epoch

    def value(self, epoch: int) -> float | None:
        """Return the score of an epoch, None if it was not measured."""
        lines = (line for line in self.epochs if line["epoch"] == epoch)
        return next(lines, {}).get(self.selected_by)

    @property
    def summary(self) -> str:
        """One clause such as "best at epoch 1 of 6"."""
        start, best = self.value(0), self.value(self.best)
        if not self.best:
            return "not validated"
        before = "" if start is None else f", {best:.3f} from {start:.3f}"
        return f"best at epoch {self.best} of {self.last}{before}"

    @property
    def sentences(self) -> str:
        """What the best epoch means, and what the training did."""
        start, best = self.value(0), self.value(self.best)
        texts = []
        if best is not None:
            before = "" if start is None else f", {start:.3f} before the training"
            texts.append(
                f"validation {self.selected_by} is {best:.3f} after epoch {self.best}{before}"
            )
        if start is not None and best is not None and start >= best:
            texts.append("the training did not improve it: lower the learning rate")
        elif self.best == self.last > 1:
            texts.append("it was best at the end: more epochs may help")
        if self.training:
            data = self.training.data_text
            texts += [f"trained on {data}"] * bool(data) + [self.training.sentence()]
        return "".join(f"{text[0].upper()}{text[1:]}. " for text in texts).strip()

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
        """Names of the figures to show: the losses, the scores, and the learning rate."""
        names = dict.fromkeys(("loss", VALIDATION_LOSS, "reward", self.selected_by, "CIDEr", "lr"))
        return [name for name in names if any(name in line for line in self.epochs)]
