"""Figures of an analysis, drawn without a display."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from a2cap.data.files.atomic import write_durably


@dataclass(frozen=True)
class Curve:
    """Named line through points (x, y).

    half_widths: of the interval of each point, which is drawn; empty for none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    half_widths: Sequence[float] = ()


def write_curves(
    path: Path,
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
    x_names: Sequence[str] = (),
) -> Path:
    """Write a PNG with a panel for each title that has curves, side by side on one scale.

    x_names: of x = 1, 2, …, shown in place of the numbers.
    """
    filled = {title: curves for title, curves in panels.items() if curves}
    # Not pyplot, which keeps every figure in memory and searches for a display.
    figure = Figure(figsize=(5 * max(len(filled), 1), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, max(len(filled), 1), sharey=True, squeeze=False)[0]
    for axis, (title, curves) in zip(axes, filled.items(), strict=False):
        for curve in curves:
            x, y = zip(*curve.points, strict=True)
            widths = curve.half_widths or None
            axis.errorbar(x, y, yerr=widths, marker="o", capsize=2, label=curve.name)
        axis.set(title=title, xlabel=x_label)
        smallest = min((x for curve in curves for x, _ in curve.points if x > 0), default=1.0)
        if x_names:
            axis.set_xticks(range(1, len(x_names) + 1), x_names)
        elif logarithmic:
            axis.set_xscale("symlog", linthresh=smallest)  # unlike log, it can show a weight of 0
        else:
            axis.set_xticks(sorted({x for curve in curves for x, _ in curve.points}))
    axes[0].set_ylabel(y_label)
    # below the panels: inside them it would cover lines
    named = {
        name: line
        for axis in axes
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named, loc="outside lower center", ncols=2, fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_durably(path, drawn.getvalue())
    return path
