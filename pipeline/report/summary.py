"""The summary of a report: tables of metrics and groups of words, and a histogram of CIDEr."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from a2cap.pipeline.metrics.score import METRICS
from a2cap.pipeline.metrics.word_groups import GroupScore, PairScore, WordScore

_BINS = 32


def shown_name(metric: str) -> str:
    """Papers write BLEU-4 and ROUGE-L; the keys are those of the COCO server."""
    return metric.replace("Bleu_", "BLEU-").replace("_", "-")


def in_order(metrics: Iterable[str]) -> list[str]:
    """Each metric once, as tables show them: those of `metrics.json` first."""
    found = dict.fromkeys(metrics)
    return [name for name in METRICS if name in found] + [n for n in found if n not in METRICS]


def in_words(figures: Mapping[str, float], spice: Mapping[str, float]) -> dict[str, str]:
    """Figures of the captions and the parts of SPICE, name -> value, as a report lists them."""
    named = {name.replace("_", " "): value for name, value in figures.items()}
    named |= {f"SPICE, {part}": value for part, value in spice.items()}
    return {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        for name, value in named.items()
    }


@dataclass(frozen=True)
class MetricRow:
    """One line of the table of metrics; `reason` is set where there is no value."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    baseline: float | None
    ratio: float | None
    reason: str


def metric_rows(
    metrics: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    baseline: Mapping[str, float],
    not_run: Mapping[str, str],
) -> list[MetricRow]:
    """A line for each metric that has a value or a reason for none."""
    rows = []
    for name in in_order((*metrics, *not_run)):
        value, compared = metrics.get(name), baseline.get(name)
        ratio = value / compared if value is not None and compared else None
        reason = not_run.get(name, "")
        rows.append(
            MetricRow(shown_name(name), value, intervals.get(name), compared, ratio, reason)
        )
    return rows


@dataclass(frozen=True)
class GroupRow:
    """One line of the table of groups of words, with what the baseline scored."""

    name: str
    words: WordScore
    pairs: PairScore
    baseline_f1: float | None
    baseline_accuracy: float | None


def group_rows(
    scores: Mapping[str, GroupScore], baseline: Mapping[str, GroupScore]
) -> list[GroupRow]:
    """A line for each group, in the order of `scores`."""
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
    """One bar of the histogram: its place, and its height as a share of the highest."""

    index: int
    share: float
    count: int
    start: float
    end: float


@dataclass(frozen=True)
class Histogram:
    """How many images have which CIDEr."""

    bars: list[Bar]
    bins: int
    upper: float
    median: float


def histogram(values: Sequence[float]) -> Histogram | None:
    """Of the values of all images; None where there is none."""
    if not values:
        return None
    upper = max(1.0, math.ceil(max(values) * 2) / 2)
    counts, edges = np.histogram(values, bins=_BINS, range=(0.0, upper))
    highest = int(counts.max()) or 1
    bars = [
        Bar(index, int(count) / highest, int(count), float(edges[index]), float(edges[index + 1]))
        for index, count in enumerate(counts)
        if count
    ]
    return Histogram(bars, _BINS, upper, median(values))
