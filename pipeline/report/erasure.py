"""Erasure in tables and figures: what words lose without regions, with intervals over images."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from a2cap.pipeline.metrics.bootstrap import interval, resample
from a2cap.pipeline.report.curves import CurvePoint, Panel, draw_panel
from a2cap.pipeline.report.summary import Cell, ReportTable

if TYPE_CHECKING:  # it imports torch, which a page of scores does not need
    from a2cap.model.erasure import Erasure

Row = dict[str, str | int | float | None]

_MEANS = ("comprehensiveness", "sufficiency")
_HEADS = ["order", *_MEANS, "without all", "τ(Shapley)"]


def intervals(erasure: "Erasure") -> dict[str, tuple[float, float]]:
    """Return the 95 % interval over images of both means, by name."""
    images = np.array(erasure.of_images, dtype=np.float64)
    ratios = {name: ((name,), lambda sums: sums[:, 1:] / sums[:, :1]) for name in _MEANS}
    columns = {name: images[:, [0, at]] for at, name in enumerate(_MEANS, start=1)}
    return {name: interval(values) for name, values in resample(columns, ratios).items()}


def erasure_rows(orders: "Sequence[Erasure]") -> list[Row]:
    """Return a row for each order of the regions, in nats per word."""
    rows: list[Row] = []
    for erasure in orders:
        row: Row = {
            "order": erasure.order,
            "images": len(erasure.of_images),
            "words": erasure.words,
        }
        for name, ends in intervals(erasure).items():
            row |= {name: getattr(erasure, name), f"{name}_low": ends[0], f"{name}_high": ends[1]}
        rows.append(row | {n: getattr(erasure, n) for n in ("all_removed", "shapley", "exact")})
    return rows


def curve_rows(orders: "Sequence[Erasure]") -> list[Row]:
    """Return a row for each share of the regions and order: the loss of a word in nats."""
    return [
        {"order": erasure.order, "share": share, "deletion": removed, "insertion": alone}
        for erasure in orders
        for share, removed, alone in zip(
            erasure.shares, erasure.deletion, erasure.insertion, strict=True
        )
    ]


def with_interval(row: Row, name: str) -> str:
    """Format a mean of `erasure_rows` with its interval."""
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


def erasure_table(rows: Sequence[Row]) -> ReportTable:
    """Return the table of a page; rows: of `erasure_rows`."""

    def number(value: object) -> str:
        return "–" if value is None else f"{value:.3f}"

    cells: list[list[Cell]] = [
        [
            str(row["order"]),
            *(with_interval(row, name) for name in _MEANS),
            number(row["all_removed"]),
            number(row["shapley"]),
        ]
        for row in rows
    ]
    return _HEADS, cells


def shown_orders(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the orders that are drawn: the attention, aligned if it is, and the random erasure."""
    return ("aligned" if any(row["order"] == "aligned" for row in rows) else "attention", "random")


def erasure_panels(curves: Sequence[Row]) -> list[Panel]:
    """Return the deletion and the insertion curve of `shown_orders`; curves: of `curve_rows`."""
    panels = []
    for kind, axis in (("deletion", "share removed"), ("insertion", "share kept")):
        lines: list[list[CurvePoint]] = [
            [
                (float(row["share"] or 0), float(row[kind] or 0), _text(row, kind), False)
                for row in curves
                if row["order"] == order
            ]
            for order in shown_orders(curves)
        ]
        panels.append(draw_panel(f"{kind}, nats", lines, ends=(0, 1), axis=axis))
    return panels


def _text(row: Row, kind: str) -> str:
    return f"{row['order']}, {row['share']:.0%}: {row[kind]:.3g}"
