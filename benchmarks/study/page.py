"""Figures on docs/claims.md, written from results.

A figure is between two comments, which a reader does not see: `<!--NAME-->0.403 ± 0.053<!---->`.
NAME is `part | label | value` of the rows of results, as `depth | gate | CIDEr`; `gate - none` is
the difference paired by seed, and a * in the value lists the means of the decoder layers. Seeds
that failed, and seeds without this value, are named behind it. `part | machine` is where and when
the part was measured, `part | label | seeds` how many seeds were tried.
`page.md | heading | row | column` is a cell of a table on another page of docs/.
"""

import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from a2cap.pipeline.analysis.t_interval import Interval
from benchmarks.study.results import Results, Row, paired_difference
from benchmarks.study.running import CROSS_ENTROPY

DOCS = Path(__file__).parents[2] / "docs"
MACHINE, SEEDS = "machine", "seeds"
_FIGURE = re.compile(r"<!--([^<>|]+\|[^<>]+)-->([^<]*)<!---->")
_MOST_LAYERS = 100


def with_figures(page: str, results: Results, *, is_quick: bool = False) -> str:
    """Return a page with the figures of results and tables; those of parts without rows stay.

    is_quick: figures that tiny sizes lack stay, too. Raises KeyError for a figure that is nowhere.
    """
    parts = {row.part for row in results.rows}

    def written(match: re.Match[str]) -> str:
        first, *names = (name.strip() for name in match[1].split("|"))
        text = match[2]
        if first.endswith(".md"):
            text = table_cell((DOCS / first).read_text(encoding="utf-8"), *names)
        elif first in parts and names == [MACHINE]:
            text = _machines(results, first)
        elif first in parts:
            with suppress(KeyError) if is_quick else nullcontext():
                text = figure(results, first, *names)
        return f"<!--{match[1]}-->{text}<!---->"

    return _FIGURE.sub(written, page)


def _machines(results: Results, part: str) -> str:
    """Return where and when a part was measured; which seeds or label where these differ."""
    measured: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.part == part:
            measured.setdefault(row.machine, []).append(row)
    texts = []
    for machine, rows in measured.items():
        labels, seeds = {row.label for row in rows}, sorted({row.seed for row in rows})
        minutes = sum(row.values.get("seconds", 0.0) for row in rows) / 60
        of = [*(labels if len(labels) == 1 else ()), f"seed{'s' * (len(seeds) > 1)}"]
        prefix = f"{', '.join(of)} {', '.join(map(str, seeds))}: " if len(measured) > 1 else ""
        texts.append(f"{prefix}{machine}" + (f", {minutes:.0f} min" if minutes else ""))
    return "; ".join(texts)


def figure(results: Results, part: str, label: str, name: str) -> str:
    """Return a mean over seeds with its interval, or the mean of each layer; name seeds without it.

    "–" stands for a value that no seed has. Raises KeyError for a label without rows, and for a
    value that no row of the part has, unless all rows of the label failed.
    """
    labels = label.split(" - ")
    rows = [row for row in results.rows if row.part == part and row.label in labels]
    if name == SEEDS:
        return str(len(rows))
    defined = {value for row in results.rows if row.part == part for value in row.values}
    names = [value for value in _layered(name) if value in defined]
    if not rows or not (names or all(row.failure for row in rows)):
        raise KeyError(f"no result: {part} | {label} | {name}")
    texts = [_mean(results, part, labels, value) for value in names or [name]]
    if "*" in name:  # the rows have the intervals of each layer
        texts = [text.partition(" ")[0] for text in texts]
    missing = [
        f" ({row.label}, seed {row.seed}, {reason})"
        for row in rows
        if (reason := f"failed: {row.failure}" if row.failure else _undefined(row, names))
    ]
    return ", ".join(texts) + "".join(missing)


def _undefined(row: Row, names: list[str]) -> str:
    return "" if {*names} <= row.values.keys() else "not defined"


def _layered(name: str) -> Iterator[str]:
    """Yield the value of each layer, or the value."""
    if "*" not in name:
        yield name
        return
    yield from (name.replace("*", str(layer)) for layer in range(1, _MOST_LAYERS))


def _mean(results: Results, part: str, labels: list[str], name: str) -> str:
    """Return the mean, or the difference of two labels; "–" if it is undefined."""
    values = [results.by_seed(part, label, CROSS_ENTROPY, name) for label in labels]
    if len(values) == 1:
        return str(results.mean(part, labels[0], CROSS_ENTROPY, name) or "–")
    difference = paired_difference(*values)
    return signed(difference) if difference else "–"


def signed(difference: Interval) -> str:
    """Format a difference with its sign."""
    return f"+{difference}" if difference.mean >= 0 else f"−{str(difference).lstrip('-')}"


def table_cell(page: str, heading: str, row: str, column: str) -> str:
    """Return a cell, without bold, of the tables between a heading and the next.

    Raises KeyError if these have no such cell.
    """
    section = re.search(rf"^##+ {re.escape(heading)}\n((?:(?!##).*\n)*)", page, flags=re.MULTILINE)
    for table in re.finditer(r"(?:^\|.*\n)+", section[1] if section else "", flags=re.MULTILINE):
        header, *rows = [
            [cell.strip().strip("*") for cell in line.strip("|").split("|")]
            for line in table[0].splitlines()
        ]
        for cells in rows:
            if cells[0] == row and column in header:
                return cells[header.index(column)]
    raise KeyError(f"no cell: {heading} | {row} | {column}")
