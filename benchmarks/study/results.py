"""Results of all trials as rows, stored as a CSV file."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from a2cap.data.errors import A2Error
from a2cap.pipeline.analysis.t_interval import Interval, t_interval
from benchmarks.study.grid import Trial
from benchmarks.study.running import Finding

_NAMED = ("part", "label", "phase", "seed", "failure", "machine")
_DIGITS = 5


@dataclass(frozen=True)
class Row:
    """Values of one trial after one training task; undefined values are left out.

    failure: the error of a trial that has no values; machine: where and when it was measured.
    """

    part: str
    label: str
    phase: str
    seed: int
    values: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    machine: str = ""


def row(trial: Trial, finding: Finding) -> Row:
    """Return the values of a finding under the names that the tables use."""
    values = {
        **dict(_flat(finding.measured, "")),
        **_training(finding.training),
        "seconds": finding.seconds,
    }
    return Row(trial.part, trial.label, finding.phase, trial.seed, rounded(values))


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values as a file has them, sorted by name, without those that are not finite."""
    finite = {name: value for name, value in sorted(values.items()) if math.isfinite(value)}
    return {name: float(_format(value)) for name, value in finite.items()}


def failed_row(part: str, label: str, seed: int, error: Exception) -> Row:
    """Return the row of a captioner that failed or diverged."""
    text = str(error) if isinstance(error, A2Error) else f"{type(error).__name__}: {error}"
    return Row(part, label, "", seed, failure=text.partition("\n")[0])


def _flat(value: object, name: str) -> Iterator[tuple[str, float]]:
    """Yield numbers with their path, "grounding/kinds/attention"; layers count from 1."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield name, float(value)
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value, start=1)
    for key, part in inner:
        yield from _flat(part, f"{name}/{key}".strip("/"))


def _training(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the first and last epoch of the values that training reports."""
    ends = {}
    for name in ("loss", "reward", "CIDEr"):
        if name in epochs[0]:
            ends[f"first epoch/{name}"] = epochs[0][name]
            ends[f"last epoch/{name}"] = epochs[-1][name]
    return ends


@dataclass(frozen=True)
class Results:
    """Rows, and their means over seeds."""

    rows: Sequence[Row]

    def labels(self, part: str, phase: str) -> list[str]:
        """Return the rows of a table in the order of the trials."""
        labels = [row.label for row in self.rows if (row.part, row.phase) == (part, phase)]
        return list(dict.fromkeys(labels))

    def names(self) -> list[str]:
        """Return the names of all values."""
        return sorted({name for row in self.rows for name in row.values})

    def by_seed(self, part: str, label: str, phase: str, name: str) -> dict[int, float]:
        """Return seed -> value where it is defined."""
        return {
            row.seed: row.values[name]
            for row in self.rows
            if (row.part, row.label, row.phase) == (part, label, phase) and name in row.values
        }

    def mean(self, part: str, label: str, phase: str, name: str) -> Interval | None:
        """Return the mean over seeds; None if it is undefined for all."""
        means = self.by_seed(part, label, phase, name)
        return t_interval(list(means.values())) if means else None

    def failures(self) -> list[str]:
        """Name each trial that failed, with its error."""
        return [
            f"{row.part} {row.label}, seed {row.seed}: {row.failure}"
            for row in self.rows
            if row.failure
        ]

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read what `write` wrote; without a file there are no rows."""
        if not path.is_file():
            return cls([])
        with path.open(encoding="utf-8", newline="") as file:
            return cls([_parsed(cells) for cells in csv.DictReader(file)])

    def write(self, path: Path) -> None:
        """Write a CSV file with a column per name."""
        text = io.StringIO()
        names = self.names()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*_NAMED, *names])
        for row in self.rows:
            values = [_format(row.values.get(name)) for name in names]
            writer.writerow([*(getattr(row, name) for name in _NAMED), *values])
        path.write_text(text.getvalue(), encoding="utf-8")


def keep(path: Path, row: Row, machine: str) -> None:
    """Replace the row of a captioner's phase in a file, unless it has these values already.

    A failure, which has no phase, replaces all phases, and each phase replaces it. A row of a
    measurement that is resumed keeps the machine that it was measured on.
    """
    rows, row = Results.read(path).rows, replace(row, values=rounded(row.values))
    replaced = [
        old
        for old in rows
        if (old.part, old.label, old.seed) == (row.part, row.label, row.seed)
        and (old.phase == row.phase or "" in (old.phase, row.phase))
    ]
    if [replace(old, machine="") for old in replaced] != [row]:
        place = rows.index(replaced[0]) if replaced else len(rows)
        others = [old for old in rows if old not in replaced]
        rows = [*others[:place], replace(row, machine=machine), *others[place:]]
    Results(rows).write(path)


def _parsed(cells: Mapping[str, str]) -> Row:
    values = {
        name: float(text) for name, text in cells.items() if name not in _NAMED and text != ""
    }
    named = (cells["part"], cells["label"], cells["phase"], int(cells["seed"]))
    return Row(*named, values, cells["failure"], cells["machine"])


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.{_DIGITS}g}"


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> Interval | None:
    """Return the mean difference from the baseline by seed, with its 95 % interval.

    None without common seeds.
    """
    shared = sorted(values.keys() & baseline.keys())
    if not shared:
        return None
    return t_interval([values[seed] - baseline[seed] for seed in shared])
