"""Learning curves of one or two trainings as panels of a page: a figure each, over the epochs."""

from collections.abc import Sequence
from dataclasses import dataclass

from a2cap.pipeline.training.learning_curve import LearningCurve

WIDTH, HEIGHT, MARGIN = 320, 120, 10
"""Size of a panel, and the margin around its lines, in units of the page."""

_TITLES = {
    "loss": "training loss",
    "reward": "reward",
    "validation_loss": "validation loss",
    "lr": "learning rate",
}
_MOST_DOTS = 60  # epochs; of more, only the best has a dot


@dataclass(frozen=True)
class Dot:
    """A measured epoch: its place in the panel, what it says, and whether it is the best one."""

    x: float
    y: float
    text: str
    is_best: bool
    is_shown: bool


@dataclass(frozen=True)
class Panel:
    """A figure over the epochs; lines: dots of each training, none if it did not measure it."""

    title: str
    low: str
    high: str
    first: int
    last: int
    lines: Sequence[Sequence[Dot]]


def panels(curves: Sequence[LearningCurve | None], names: Sequence[str] = ("",)) -> list[Panel]:
    """Return a panel for each figure that any of the trainings measured.

    names: how each training is called in the texts, "" for the only one.
    """
    present = [curve for curve in curves if curve]
    return [
        _panel(name, curves, names) for name in dict.fromkeys(n for c in present for n in c.figures)
    ]


def _panel(name: str, curves: Sequence[LearningCurve | None], names: Sequence[str]) -> Panel:
    measured = [
        [(int(line["epoch"]), line[name]) for line in curve.epochs if name in line] if curve else []
        for curve in curves
    ]
    values = [value for line in measured for _, value in line]
    # of all figures, so that the panels have one axis: epoch 0 has a score and no loss
    epochs = [int(line["epoch"]) for curve in curves if curve for line in curve.epochs]
    first, last = min(epochs), max(epochs)
    low, high = min(values, default=0.0), max(values, default=0.0)

    def place(value: float, start: float, end: float, size: int) -> float:
        share = (value - start) / (end - start) if end > start else 0.5
        return round(MARGIN + share * (size - 2 * MARGIN), 1)

    lines = []
    for curve, run, points in zip(curves, names, measured, strict=True):
        dots = []
        for epoch, value in points:
            is_best = curve is not None and epoch == curve.best
            text = f"{run} epoch {epoch}: {value:.4g}{', the best' if is_best else ''}".strip()
            x = place(epoch, first, last, WIDTH)
            y = HEIGHT - place(value, low, high, HEIGHT)
            dots.append(Dot(x, y, text, is_best, is_best or len(points) <= _MOST_DOTS))
        lines.append(dots)
    title = _TITLES.get(name, f"validation {name}")
    return Panel(title, f"{low:.3g}", f"{high:.3g}", first, last, lines)
