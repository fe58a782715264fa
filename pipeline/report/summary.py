"""Summary of a report: tables of metrics and groups of words, and a histogram of CIDEr."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from a2cap.pipeline.metrics.score import METRICS, Scores, shown_name
from a2cap.pipeline.metrics.truth import TRUTH
from a2cap.pipeline.metrics.word_groups import GroupScore, PairScore, WordScore

_BINS = 32


def in_order(metrics: Iterable[str]) -> list[str]:
    """Return each metric once: METRICS and TRUTH first, in that order, then the others."""
    known, found = (*METRICS, *TRUTH), dict.fromkeys(metrics)
    return [name for name in known if name in found] + [n for n in found if n not in known]


def format_figures(figures: Mapping[str, float], spice: Mapping[str, float]) -> dict[str, str]:
    """Return caption statistics and SPICE categories as text, name -> value."""
    named = {name.replace("_", " "): value for name, value in figures.items()}
    named |= {f"SPICE, {part}": value for part, value in spice.items()}
    return {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        for name, value in named.items()
    }


@dataclass(frozen=True)
class MetricRow:
    """Row of the table of metrics; `reason` is empty if there is a value."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    baseline: float | None
    ratio: float | None
    reason: str


def metric_rows(scores: Scores, baseline: Mapping[str, float]) -> list[MetricRow]:
    """Return a row for each metric that has a value or a reason for none."""
    rows = []
    for name in in_order((*scores.metrics, *scores.not_run)):
        value, compared = scores.metrics.get(name), baseline.get(name)
        # A baseline of 0 has no ratio.
        ratio = value / compared if value is not None and compared else None
        interval, reason = scores.confidence.get(name), scores.not_run.get(name, "")
        rows.append(MetricRow(shown_name(name), value, interval, compared, ratio, reason))
    return rows


@dataclass(frozen=True)
class GroupRow:
    """Row of the table of groups of words, with the baseline's scores."""

    name: str
    words: WordScore
    pairs: PairScore
    baseline_f1: float | None
    baseline_accuracy: float | None


def group_rows(
    scores: Mapping[str, GroupScore], baseline: Mapping[str, GroupScore]
) -> list[GroupRow]:
    """Return a row for each group, in the order of `scores`."""
    return [
        GroupRow(
            name,
            found.words,
            found.pairs,
            baseline[name].words.f1 if name in baseline else None,
            baseline[name].pairs.accuracy if name in baseline else None,
        )
        for name, found in scores.items()
    ]


@dataclass(frozen=True)
class Bar:
    """Bar of the histogram: its position, and its height as a share of the highest."""

    index: int
    share: float
    count: int
    start: float
    end: float


@dataclass(frozen=True)
class Histogram:
    """Distribution of CIDEr over images; empty bins have no bar."""

    bars: list[Bar]
    bins: int
    upper: float
    median: float


def histogram(values: Sequence[float]) -> Histogram | None:
    """Return the histogram of the values of all images, or None without values."""
    if not values:
        return None
    # The next multiple of 0.5, at least 1: axes of similar runs are equal.
    upper = max(1.0, math.ceil(max(values) * 2) / 2)
    counts, edges = np.histogram(values, bins=_BINS, range=(0.0, upper))
    highest = int(counts.max()) or 1
    bars = [
        Bar(index, int(count) / highest, int(count), float(edges[index]), float(edges[index + 1]))
        for index, count in enumerate(counts)
        if count
    ]
    return Histogram(bars, _BINS, upper, median(values))
