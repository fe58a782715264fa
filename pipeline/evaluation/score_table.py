"""One table of the scores of several sets of captions of the same images, in five forms.

The first set is what the others are compared with, by the paired bootstrap of comparison.py.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from a2cap.data.files.csv_cell import as_text
from a2cap.pipeline.evaluation.comparison import compare_scores
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.metric_table import in_order, metric_of, shown_name
from a2cap.pipeline.report.comparison_page import Difference

_NOTE = "In parentheses: 95 % interval of the difference from {}, by a paired bootstrap."
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True)
class ScoreTable:
    """Scores by the name of their set of captions, in the order of rows."""

    scores: Mapping[str, Scores]

    @property
    def first(self) -> str:
        """Name of the set that the others are compared with."""
        return next(iter(self.scores))

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics of any set, in the order of columns."""
        return in_order(name for scores in self.scores.values() for name in scores.metrics)

    @cached_property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """Set -> metric -> its difference from the first set."""
        first, *later_sets = self.scores
        return {
            name: {row.metric: row for row in compare_scores(self.scores[first], self.scores[name])}
            for name in later_sets
        }

    def is_best(self, name: str, metric: str) -> bool:
        """Return True for the best value of a metric; what only counts has none."""
        values = [s.metrics[metric] for s in self.scores.values() if metric in s.metrics]
        if len(values) < 2 or not metric_of(metric).is_ranked:
            return False
        best = min(values) if metric_of(metric).lower_is_better else max(values)
        return self.scores[name].metrics.get(metric) == best

    def rows(self, mark: Callable[[str], str], *, intervals: bool) -> list[list[str]]:
        """Return the heads of the columns and a row of cells for each set.

        mark: applied to the best values. intervals: add those of the differences.
        """
        heads = ["", *map(shown_name, self.metrics)]
        cells = [
            [name, *(self._cell(name, m, mark, intervals) for m in self.metrics)]
            for name in self.scores
        ]
        return [heads, *cells]

    def _cell(self, name: str, metric: str, mark: Callable[[str], str], intervals: bool) -> str:
        value = self.scores[name].metrics.get(metric)
        if value is None:
            return "–"
        text = mark(f"{value:.4f}") if self.is_best(name, metric) else f"{value:.4f}"
        row = self.differences.get(name, {}).get(metric)
        if not intervals or row is None or row.low is None:
            return text
        return f"{text} ({row.low:+.4f} to {row.high:+.4f})"

    def as_text(self) -> str:
        """Return the table for a terminal, an asterisk after the best values."""
        return as_lines(self.rows(lambda text: f"{text}*", intervals=False))

    def as_markdown(self) -> str:
        """Return the table in Markdown, the best values in bold."""
        heads, *rows = self.rows(lambda text: f"**{text}**", intervals=True)
        heads, *rows = ([cell.replace("|", r"\|") for cell in row] for row in (heads, *rows))
        lines = [heads, ["---", *["---:"] * len(self.metrics)], *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{_NOTE.format(self.first)}"

    def as_latex(self) -> str:
        r"""Return a tabular of LaTeX, the best values in \textbf."""
        rows = self.rows(lambda text: f"\0{text}\0", intervals=True)
        return f"% {_latex(_NOTE.format(self.first))}\n{as_tabular(rows)}"

    def as_csv(self) -> str:
        """Return a line for each set and metric, with both intervals."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(
            ["captions", "metric", "value", "low", "high", "best"]
            + [f"difference{end}" for end in ("", " low", " high")]
        )
        for name, scores in self.scores.items():
            for metric, value in scores.metrics.items():
                row = self.differences.get(name, {}).get(metric)
                ends = scores.confidence.get(metric, ("", ""))
                compared = ("", "", "") if row is None else (row.difference, row.low, row.high)
                best = int(self.is_best(name, metric))
                lines.writerow([as_text(name), as_text(metric), value, *ends, best, *compared])
        return text.getvalue().removesuffix("\n")

    def as_json(self) -> str:
        """Return a list of the sets, with differences from the first."""
        rows = [
            {
                "captions": name,
                "metrics": scores.metrics,
                "confidence": scores.confidence,
                "not_run": scores.not_run,
                "best": [metric for metric in scores.metrics if self.is_best(name, metric)],
                "differences": {
                    metric: {"difference": row.difference, "low": row.low, "high": row.high}
                    for metric, row in self.differences.get(name, {}).items()
                },
            }
            for name, scores in self.scores.items()
        ]
        return json.dumps(rows, indent=1)


FORMS: Mapping[str, Callable[[ScoreTable], str]] = {
    "markdown": ScoreTable.as_markdown,
    "latex": ScoreTable.as_latex,
    "csv": ScoreTable.as_csv,
    "json": ScoreTable.as_json,
}
"""Forms for other programs."""


def as_lines(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of equally many cells in aligned columns, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for name, *cells in rows
    )


def as_tabular(rows: Sequence[Sequence[str]]) -> str:
    """Return a tabular of LaTeX; rows: the heads, and equally many cells of each row."""
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    body = "\n".join([lines[0], r"\hline", *lines[1:]])
    columns = "l" + "r" * (len(rows[0]) - 1)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}"


def _latex(text: str) -> str:
    escaped = re.sub(r"[\\~^&%$#_{}]", lambda m: _LATEX.get(m[0], f"\\{m[0]}"), text)
    return re.sub("\0(.*?)\0", r"\\textbf{\1}", escaped).replace("–", "--")
