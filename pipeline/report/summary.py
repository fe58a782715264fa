"""Summary of a report: one sentence, tables of metrics and groups of words, histogram of CIDEr."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from a2cap.data.scenes.truth import Judgement
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.metric_table import cited, in_order, main_of, shown_name
from a2cap.pipeline.metrics.word_groups import WordScore

_BINS = 32


def format_figures(figures: Mapping[str, float], spice: Mapping[str, float]) -> dict[str, str]:
    """Return caption statistics and SPICE categories as text, name -> value."""
    labelled = {name.replace("_", " "): value for name, value in figures.items()}
    labelled |= {f"SPICE, {part}": value for part, value in spice.items()}
    return {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        for name, value in labelled.items()
    }


Cell = str | tuple[str, str]
"""Cell of a table: its text, or its text in a lighter colour and the reason for it."""

ReportTable = tuple[list[str], list[list[Cell]]]
"""Heads of the columns, and rows of as many cells; a last cell with a reason may be wider."""


def headline(
    scores: Scores, baseline: Mapping[str, float], name: str, judged: Sequence[Judgement]
) -> str:
    """Return one sentence of what the evaluation found.

    baseline, name: metrics of another evaluation, empty without one, and what it is called.
    """
    main = main_of(scores.metrics)
    parts = [f"{shown_name(main)} {scores.metrics[main]:.2f}" if main else "No metric was computed"]
    if baseline.get(main):  # a baseline of 0 has no ratio
        parts.append(f"{_times(scores.metrics[main] / baseline[main])} times that of the {name}")
    text = ", ".join(parts)
    if judged:
        true = sum(judgement.is_true for judgement in judged)
        return f"{text}; {true:,} of {len(judged):,} captions are true"
    return f"{text} on {len(scores.per_image):,} images" if len(parts) == 1 else text


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 3 else f"{ratio:.1f}".removesuffix(".0")


def cited_figures(scores: Scores) -> list[tuple[str, str, str]]:
    """Return name, value and interval of the metrics that papers cite."""
    return [
        (shown_name(name), f"{scores.metrics[name]:.3f}", _interval(scores, name))
        if name in scores.metrics
        else (shown_name(name), "–", "not run")
        for name in cited((*scores.metrics, *scores.not_run))
    ]


def _interval(scores: Scores, name: str) -> str:
    return "{:.3f}–{:.3f}".format(*scores.confidence[name]) if name in scores.confidence else ""


def metric_table(scores: Scores, baseline: Mapping[str, float], name: str) -> ReportTable:
    """Return the table of each metric that has a value, or a reason for none."""
    heads = ["metric", "this run", *["95 %"] * bool(scores.confidence)]
    heads += [name, "ratio"] if baseline else []
    rows: list[list[Cell]] = []
    for metric in in_order((*scores.metrics, *scores.not_run)):
        row: list[Cell] = [shown_name(metric)]
        if metric not in scores.metrics:
            reason = scores.not_run[metric]
            rows.append([*row, (f"not run: {reason}", reason)])
            continue
        value, compared = scores.metrics[metric], baseline.get(metric)
        row.append(f"{value:.4f}")
        row += [_interval(scores, metric) or "–"] if scores.confidence else []
        if baseline:
            row.append("–" if compared is None else f"{compared:.4f}")
            row.append(f"{value / compared:.2f}×" if compared else "–")
        rows.append(row)
    return heads, rows


def group_table(
    scores: Mapping[str, WordScore], baseline: Mapping[str, WordScore], name: str
) -> ReportTable:
    """Return the table of the groups of words, in the order of `scores`, with the baseline's."""
    heads = ["group", "words", "precision", "recall", "F1", *[f"{name}, F1"] * bool(baseline)]
    rows: list[list[Cell]] = []
    for group, score in scores.items():
        row: list[Cell] = [group, f"{score.predicted:,}"]
        row += [_share(value, score.reason) for value in (score.precision, score.recall, score.f1)]
        if baseline:
            row.append(_share(baseline[group].f1 if group in baseline else None, ""))
        rows.append(row)
    return heads, rows


def _share(value: float | None, reason: str | None) -> Cell:
    return ("–", reason or "no value") if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Histogram:
    """Distribution of CIDEr; bars: number of images, share of the highest bar, start and end."""

    bars: list[tuple[int, float, float, float]]
    median: float


def histogram(values: Sequence[float]) -> Histogram | None:
    """Return the histogram of the values of all images, or None without values."""
    if not values:
        return None
    # The next multiple of 0.5, at least 1: axes of similar runs are equal.
    upper = max(1.0, math.ceil(max(values) * 2) / 2)
    counts, ends = np.histogram(values, bins=_BINS, range=(0.0, upper))
    columns = (counts, counts / max(counts.max(), 1), ends[:-1], ends[1:])
    bars = zip(*(column.tolist() for column in columns), strict=True)
    return Histogram(list(bars), median(values))
