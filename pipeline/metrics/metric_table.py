"""The table of all metrics, which everything else that names metrics reads; rows of their values.

A new metric is a row here: commands, reports, comparisons, intervals and keys of evaluations take
it from the table. Rows name functions, which are imported when they are called: a command that only
reads names is quick.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from a2cap.data.errors import InputError

if TYPE_CHECKING:
    from a2cap.pipeline.metrics.ngrams import Floats

MAIN = "CIDEr"
"""The metric that runs are listed by, and captions of a report are ordered by."""


@dataclass(frozen=True)
class Metric:
    """A metric.

    name: its key in metrics.json.
    shown: its name in papers, if that is another one.
    is_ranked: False for a number that is neither better nor worse.
    is_cited: True for a column of the tables of papers.
    """

    name: str
    shown: str = ""
    lower_is_better: bool = False
    is_ranked: bool = True
    is_cited: bool = False


@dataclass(frozen=True)
class Family:
    """Metrics of one function.

    name: its key in per_image.json.
    scorer: `module:function` of this folder, whose parameters are attributes of `Captions`. It
        returns values of N images, (N, k) numbers that are summed, or name -> value of a set.
    values: the function from sums (…, k) to values of the metrics; "" if they are means of images.
    is_of_set: True for metrics of all captions together, which have no interval.
    needs: families that are computed before it; tokens of English; java; scenes, or objects.
    version: raised when values change; evaluations run again.
    """

    name: str
    scorer: str
    metrics: tuple[Metric, ...]
    values: str = ""
    is_of_set: bool = False
    needs: tuple[str, ...] = ()
    version: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its metrics."""
        return tuple(metric.name for metric in self.metrics)

    def values_of(self, sums: "Floats") -> "Floats":
        """Return (…, M) values of its metrics; sums: (…, k), its statistics summed over images."""
        values: Floats = function_of(self.values)(sums)
        return values.reshape(*sums.shape[:-1], len(self.metrics))


SUBJECTS = ("category", "colour", "texture", "size", "count", "relation", "comparison")
"""Families of statements about scenes, in the order of their metrics."""

TABLE = (
    Family(
        "BLEU",
        "bleu:bleu_statistics",
        tuple(Metric(f"Bleu_{n}", f"BLEU-{n}", is_cited=n in (1, 4)) for n in (1, 2, 3, 4)),
        values="bleu:bleu_values",
    ),
    Family(
        "METEOR",
        "meteor.meteor:meteor_statistics",
        (Metric("METEOR", is_cited=True),),
        values="meteor.meteor:meteor_values",
        needs=("English",),
    ),
    Family("ROUGE_L", "rouge:rouge_values", (Metric("ROUGE_L", "ROUGE-L", is_cited=True),)),
    Family("CIDEr", "cider:cider_values", (Metric("CIDEr", is_cited=True),)),
    Family(
        "SPICE",
        "spice:spice_statistics",
        (Metric("SPICE", is_cited=True),),
        needs=("English", "java"),
    ),
    Family("SPIDEr", "spice:spider_values", (Metric("SPIDEr"),), needs=("CIDEr", "SPICE")),
    Family(
        "truth",
        "scene_truth:truth_counts",
        (Metric("truth"), *(Metric(f"{subject} truth") for subject in SUBJECTS)),
        values="scene_truth:truth_values",
        needs=("scenes",),
    ),
    Family(
        "CHAIR",
        "scene_truth:chair_statistics",
        (*(Metric(f"CHAIR-{of}", lower_is_better=True) for of in "is"), Metric("CHAIR-recall")),
        values="scene_truth:chair_values",
        needs=("English", "objects"),
    ),
    Family(
        "captions",
        "caption_statistics:caption_statistics",
        (
            *(Metric(name, is_ranked=False) for name in ("captions", "vocabulary")),
            *(Metric(f"words_{n}", is_ranked=False) for n in ("mean", "sd", "min", "max")),
            *(Metric(f"distinct_{n}", f"distinct-{n}") for n in (1, 2, 3)),
            Metric("distinct_captions"),
            *(Metric(name, lower_is_better=True) for name in ("repetition", "unknown")),
        ),
        is_of_set=True,
    ),
)

FAMILIES = {family.name: family for family in TABLE}
_FAMILY_OF = {name: family for family in TABLE for name in family.names}
_ROWS = {metric.name: metric for family in TABLE for metric in family.metrics}

NAMEABLE = tuple(n for n, f in _FAMILY_OF.items() if not {"scenes", "objects"} & {*f.needs})
"""Metrics that may be named; the others come with what they need."""

DEFAULTS = tuple(name for name in NAMEABLE if not _FAMILY_OF[name].is_of_set)
"""Metrics of any captions, computed unless others are named."""


def function_of(path: str) -> Callable[..., Any]:
    """Import the function that a row names."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
    return function


def _spelling(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower()


_SPELLINGS = {_spelling(text): m.name for m in _ROWS.values() for text in (m.name, m.shown) if text}


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
    return metric_of(metric).shown or metric.rpartition(":")[2]


def metric_of(name: str) -> Metric:
    """Return the row of a metric; one of one's own has the defaults."""
    return _ROWS.get(name) or Metric(name)


def family_of(metric: str) -> Family:
    """Return the family of a metric; one of one's own is its own family, of a mean."""
    return _FAMILY_OF.get(metric) or Family(metric, metric, (Metric(metric),))


def families_of(metrics: Iterable[str]) -> set[str]:
    """Return the families to compute, with those that they need."""
    families = [_FAMILY_OF[name] for name in metrics if name in _FAMILY_OF]
    return {name for family in families for name in (family.name, *family.needs)}


def needs_java(metrics: Iterable[str]) -> bool:
    """Return True if one of the metrics needs Java."""
    families = families_of(metrics)
    return any("java" in family.needs for family in TABLE if family.name in families)


def in_order(metrics: Iterable[str]) -> list[str]:
    """Return each metric once: those of the table in its order, then the others."""
    present = dict.fromkeys(metrics)
    return [*filter(present.__contains__, _ROWS), *(n for n in present if n not in _ROWS)]


def main_of(metrics: Collection[str]) -> str:
    """Return the one that stands for all of them: MAIN, or the first without it."""
    return MAIN if MAIN in metrics else next(iter(metrics), "")


def cited(metrics: Iterable[str]) -> list[str]:
    """Return those that are in the tables of papers."""
    return [name for name in in_order(metrics) if metric_of(name).is_cited]


def versions(metrics: Iterable[str]) -> dict[str, int]:
    """Return the versions of DEFAULTS and of further ones, for the key of an evaluation."""
    names = in_order((*DEFAULTS, *metrics))
    return {name: family_of(name).version for name in names if name in _ROWS}


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
