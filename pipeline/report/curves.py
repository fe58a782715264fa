"""Curves as panels of a page: learning curves of one or two trainings, and others."""

from collections.abc import Iterator, Sequence
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
    """A figure over `axis`, from `first` to `last`; lines: dots of each, none if not measured."""

    title: str
    low: str
    high: str
    first: str
    last: str
    lines: Sequence[Sequence[Dot]]
    axis: str = "epoch"


CurvePoint = tuple[float, float, str, bool]
"""x, y, what the dot says, and True for the best one."""


def panels(curves: Sequence[LearningCurve | None], names: Sequence[str] = ("",)) -> list[Panel]:
    """Return a panel for each figure that any of the trainings measured.

    names: how each training is called in the texts, "" for the only one.
    """
    present = [curve for curve in curves if curve]
    return [
        _panel(name, curves, names) for name in dict.fromkeys(n for c in present for n in c.figures)
    ]


def _panel(name: str, curves: Sequence[LearningCurve | None], names: Sequence[str]) -> Panel:
    def points(curve: LearningCurve | None, run: str) -> Iterator[CurvePoint]:
        for line in curve.epochs if curve else ():
            if curve and name in line:
                epoch, value = int(line["epoch"]), line[name]
                is_best = epoch == curve.best
                text = f"{run} epoch {epoch}: {value:.4g}{', the best' if is_best else ''}".strip()
                yield epoch, value, text, is_best

    # of all figures, so that the panels have one axis: epoch 0 has a score and no loss
    epochs = [int(line["epoch"]) for curve in curves if curve for line in curve.epochs]
    lines = [list(points(*pair)) for pair in zip(curves, names, strict=True)]
    title = _TITLES.get(name, f"validation {name}")
    return draw_panel(title, lines, ends=(min(epochs), max(epochs)))


def draw_panel(
    title: str,
    lines: Sequence[Sequence[CurvePoint]],
    *,
    ends: tuple[float, float],
    axis: str = "epoch",
) -> Panel:
    """Return a panel of these lines; ends: of its x axis, which `axis` names."""
    values = [value for line in lines for _, value, *_ in line]
    low, high = min(values, default=0.0), max(values, default=0.0)

    def place(value: float, start: float, end: float, size: int) -> float:
        share = (value - start) / (end - start) if end > start else 0.5
        return round(MARGIN + share * (size - 2 * MARGIN), 1)

    dots = [
        [
            Dot(
                place(x, *ends, WIDTH),
                HEIGHT - place(y, low, high, HEIGHT),
                text,
                is_best,
                is_best or len(line) <= _MOST_DOTS,
            )
            for x, y, text, is_best in line
        ]
        for line in lines
    ]
    first, last = (f"{end:g}" for end in ends)
    return Panel(title, f"{low:.3g}", f"{high:.3g}", first, last, dots, axis)
