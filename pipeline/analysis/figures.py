"""Figures of an analysis, drawn without a display."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from a2cap.data.files.atomic import write_durably
from a2cap.pipeline.analysis.t_interval import Interval


@dataclass(frozen=True)
class Curve:
    """Named line through points (x, y).

    half_widths: of the interval of each point, which is drawn; empty for none. is_share: drawn on
    the right axis, from 0 to 1.
    """

    name: str
    points: Sequence[tuple[float, float]]
    half_widths: Sequence[float] = ()
    is_share: bool = False

    @classmethod
    def of_means(
        cls,
        name: str,
        means: Mapping[int, Interval] | Mapping[float, Interval],
        *,
        is_share: bool = False,
    ) -> "Curve":
        """Return the curve of means over seeds with their intervals, by x in ascending order."""
        ordered = dict(sorted(means.items()))
        points = [(float(x), mean.mean) for x, mean in ordered.items()]
        return cls(name, points, [mean.half_width for mean in ordered.values()], is_share)


def write_curves(
    path: Path,
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    y_label: str,
    share_label: str = "",
    logarithmic: bool = False,
    x_names: Sequence[str] = (),
) -> Path:
    """Write a PNG with a panel for each title that has curves, side by side on one scale.

    share_label: of the right axis, which a figure without it lacks. x_names: of x = 1, 2, …, shown
    in place of the numbers.
    """
    filled = {title: curves for title, curves in panels.items() if curves}
    # Not pyplot, which keeps every figure in memory and searches for a display.
    figure = Figure(figsize=(5 * max(len(filled), 1), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, max(len(filled), 1), sharey=True, squeeze=False)[0]
    right = [axis.twinx() for axis in axes] if share_label else list(axes)
    names = dict.fromkeys(curve.name for curves in filled.values() for curve in curves)
    colours = {name: f"C{number}" for number, name in enumerate(names)}  # alike in all panels
    for axis, shares, (title, curves) in zip(axes, right, filled.items(), strict=False):
        for curve in curves:
            x, y = zip(*curve.points, strict=True)
            style: dict[str, Any] = {"marker": "o", "capsize": 2, "color": colours[curve.name]}
            drawn_on = shares if curve.is_share else axis
            drawn_on.errorbar(x, y, yerr=curve.half_widths or None, label=curve.name, **style)
        axis.set(title=title, xlabel=x_label)
        smallest = min((x for curve in curves for x, _ in curve.points if x > 0), default=1.0)
        if x_names:
            axis.set_xticks(range(1, len(x_names) + 1), x_names)
        elif logarithmic:
            axis.set_xscale("symlog", linthresh=smallest)  # unlike log, it can show a weight of 0
        else:
            axis.set_xticks(sorted({x for curve in curves for x, _ in curve.points}))
    axes[0].set_ylabel(y_label)
    if share_label:
        for shares in right:
            shares.set_ylim(0, 1.05)
        right[-1].set_ylabel(share_label)
    # below the panels: inside them it would cover lines
    legend = {
        name: line
        for axis in (*axes, *right)
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=2, fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_durably(path, drawn.getvalue())
    return path
