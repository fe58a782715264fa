"""The table of all metrics, which everything else that names metrics reads; rows of their values.

A new metric is a row here and a scorer in `SCORERS` of all_metrics.py, of sums over images also
in `SUMMED` of bootstrap.py. Commands, reports, comparisons and keys of evaluations take it from
the table.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from a2cap.data.errors import InputError

Kind = Literal["mean", "sums", "set"]

MAIN = "CIDEr"
"""The metric that runs are listed by, and captions of a report are ordered by."""


@dataclass(frozen=True)
class Metric:
    """A metric.

    name: its key in metrics.json.
    family: its scorer, which may compute several metrics.
    kind: mean of a value of each image; function of numbers that are summed over images; or number
        of all captions together, which no image has and which has no interval.
    shown: its name in papers, if that is another one.
    needs: families that are computed before it; java; scenes, or objects of images.
    is_ranked: False for a number that is neither better nor worse.
    is_cited: True for a column of the tables of papers.
    version: raised when its values change; evaluations run again.
    """

    name: str
    family: str
    kind: Kind
    shown: str = ""
    needs: tuple[str, ...] = ()
    english_only: bool = False
    lower_is_better: bool = False
    is_ranked: bool = True
    is_cited: bool = False
    version: int = 1


TABLE = (
    Metric("Bleu_1", "BLEU", "sums", "BLEU-1", is_cited=True),
    Metric("Bleu_2", "BLEU", "sums", "BLEU-2"),
    Metric("Bleu_3", "BLEU", "sums", "BLEU-3"),
    Metric("Bleu_4", "BLEU", "sums", "BLEU-4", is_cited=True),
    Metric("METEOR", "METEOR", "sums", english_only=True, is_cited=True),
    Metric("ROUGE_L", "ROUGE_L", "mean", "ROUGE-L", is_cited=True),
    Metric("CIDEr", "CIDEr", "mean", is_cited=True),
    Metric("SPICE", "SPICE", "mean", needs=("java",), english_only=True, is_cited=True),
    Metric("SPIDEr", "SPIDEr", "mean", needs=("CIDEr", "SPICE")),
    Metric("truth", "truth", "sums", needs=("scenes",)),
    Metric("category truth", "truth", "sums", needs=("scenes",)),
    Metric("colour truth", "truth", "sums", needs=("scenes",)),
    Metric("texture truth", "truth", "sums", needs=("scenes",)),
    Metric("size truth", "truth", "sums", needs=("scenes",)),
    Metric("count truth", "truth", "sums", needs=("scenes",)),
    Metric("relation truth", "truth", "sums", needs=("scenes",)),
    Metric("comparison truth", "truth", "sums", needs=("scenes",)),
    Metric("CHAIR-i", "CHAIR", "sums", needs=("objects",), english_only=True, lower_is_better=True),
    Metric("CHAIR-s", "CHAIR", "sums", needs=("objects",), english_only=True, lower_is_better=True),
    Metric("CHAIR-recall", "CHAIR", "sums", needs=("objects",), english_only=True),
    Metric("captions", "captions", "set", is_ranked=False),
    Metric("vocabulary", "captions", "set", is_ranked=False),
    Metric("words_mean", "captions", "set", is_ranked=False),
    Metric("words_sd", "captions", "set", is_ranked=False),
    Metric("words_min", "captions", "set", is_ranked=False),
    Metric("words_max", "captions", "set", is_ranked=False),
    Metric("distinct_1", "captions", "set", "distinct-1"),
    Metric("distinct_2", "captions", "set", "distinct-2"),
    Metric("distinct_3", "captions", "set", "distinct-3"),
    Metric("distinct_captions", "captions", "set"),
    Metric("repetition", "captions", "set", lower_is_better=True),
    Metric("unknown", "captions", "set", lower_is_better=True),
)

_ROWS = {metric.name: metric for metric in TABLE}

NAMEABLE = tuple(m.name for m in TABLE if not {"scenes", "objects"} & {*m.needs})
"""Metrics that may be named; the others come with what they need."""

DEFAULTS = tuple(name for name in NAMEABLE if _ROWS[name].kind != "set")
"""Metrics of any captions, computed unless others are named."""


def _spelling(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower()


_SPELLINGS = {_spelling(text): m.name for m in TABLE for text in (m.name, m.shown) if text}


def metric_name(text: str) -> str:
    """Return the key of a metric named as people write it, such as BLEU-4; InputError if unknown.

    `module:function`, a metric of one's own, is its own key.
    """
    name = text if ":" in text else _SPELLINGS.get(_spelling(text))
    if name is None or not (":" in name or name in NAMEABLE):
        raise InputError(f"unknown metric: {text!r}; use some of {', '.join(NAMEABLE)}")
    return name


def shown_name(metric: str) -> str:
    """Return a metric's name as in papers, or the function's of one's own."""
    row = _ROWS.get(metric)
    return (row and row.shown) or metric.rpartition(":")[2]


def names_of(family: str) -> tuple[str, ...]:
    """Return the metrics of a family."""
    return tuple(metric.name for metric in TABLE if metric.family == family)


def family_of(metric: str) -> str:
    """Return the family of a metric; one of one's own is its own family."""
    return _ROWS[metric].family if metric in _ROWS else metric


def kind_of(metric: str) -> Kind:
    """Return the kind of a metric; one of one's own is a mean."""
    return _ROWS[metric].kind if metric in _ROWS else "mean"


def is_lower_better(metric: str) -> bool:
    """Return True if fewer is better."""
    return metric in _ROWS and _ROWS[metric].lower_is_better


def is_ranked(metric: str) -> bool:
    """Return False for a number that is neither better nor worse."""
    return metric not in _ROWS or _ROWS[metric].is_ranked


def families_of(metrics: Iterable[str]) -> set[str]:
    """Return the families to compute, with those that they need."""
    rows = [_ROWS[name] for name in metrics if name in _ROWS]
    return {name for row in rows for name in (row.family, *row.needs)}


def needs_java(metrics: Iterable[str]) -> bool:
    """Return True if one of the metrics needs Java."""
    families = families_of(metrics)
    return any("java" in metric.needs for metric in TABLE if metric.family in families)


def in_order(metrics: Iterable[str]) -> list[str]:
    """Return each metric once: those of the table in its order, then the others."""
    present = dict.fromkeys(metrics)
    return [*filter(present.__contains__, _ROWS), *(n for n in present if n not in _ROWS)]


def main_of(metrics: Collection[str]) -> str:
    """Return the one that stands for all of them: MAIN, or the first without it."""
    return MAIN if MAIN in metrics else next(iter(metrics), "")


def cited(metrics: Iterable[str]) -> list[str]:
    """Return those that are in the tables of papers."""
    return [name for name in in_order(metrics) if name in _ROWS and _ROWS[name].is_cited]


def versions(metrics: Iterable[str]) -> dict[str, int]:
    """Return the versions of DEFAULTS and of further ones, for the key of an evaluation."""
    return {name: _ROWS[name].version for name in in_order((*DEFAULTS, *metrics)) if name in _ROWS}


ScoreRow = tuple[str, str, str]
"""Name of a metric, its value, and its interval or the reason why it did not run."""


def score_rows(
    metrics: Mapping[str, float],
    confidence: Mapping[str, Sequence[float]],
    not_run: Mapping[str, str],
) -> list[ScoreRow]:
    """Return a row for each metric, then one for each that did not run."""
    intervals = {name: "{:.4f} to {:.4f}".format(*ends) for name, ends in confidence.items()}
    rows = [(shown_name(n), f"{metrics[n]:.4f}", intervals.get(n, "")) for n in in_order(metrics)]
    return rows + [(shown_name(name), "not run:", why) for name, why in not_run.items()]


def rows_as_text(rows: Sequence[ScoreRow]) -> list[str]:
    """Return the lines of a table."""
    width = max(8, *(len(name) for name, *_ in rows))
    return [f"{name:<{width}} {' '.join(rest).rstrip()}" for name, *rest in rows]


def rows_as_html(rows: Sequence[ScoreRow]) -> str:
    """Return a table for a notebook."""
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f"<table><tr><th></th><th>value</th><th>95 % interval</th></tr>{cells}</table>"
