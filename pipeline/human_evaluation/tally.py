"""The result of a human evaluation: wins, ties, losses, intervals and the judges' agreement."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import InputError
from a2cap.pipeline.human_evaluation.sheet import ANSWERS, CRITERIA, Key
from a2cap.pipeline.metrics.bootstrap import interval, resample

Counts = NDArray[np.float64]
"""(N, 3): how many judges preferred the first captioner, neither, the second, for each item."""


@dataclass(frozen=True)
class Tally:
    """Result of one criterion for one pair of captioners, positions among the key's names.

    first, tie, second: shares of the answers, which sum to 1. difference: second - first, with its
    95 % bootstrap interval over the items. agreement: Fleiss' kappa, None with one judge.
    """

    criterion: str
    first: float
    tie: float
    second: float
    difference: float
    low: float
    high: float
    agreement: float | None
    pair: tuple[int, int] = (0, 1)


def tally(key: Key, sheets: Sequence[Path]) -> list[Tally]:
    """Count the answers of each judge's sheet.

    Raises InputError for a sheet of another evaluation, missing or invalid answers, or the same
    sheet twice.
    """
    if repeated := [str(sheet) for sheet in sheets if sheets.count(sheet) > 1]:
        raise InputError(
            f"a judge would count twice: {repeated[0]!r}; name one file for each judge"
        )
    answers = [_read_answers(sheet, len(key.items)) for sheet in sheets]
    counts = {name: _counts(key, [found[name] for found in answers]) for name in CRITERIA}
    of_pair: dict[tuple[int, int], list[int]] = {}
    for row, item in enumerate(key.items):
        of_pair.setdefault(item.pair, []).append(row)
    return [
        replace(_tally(name, found[rows]), pair=pair)
        for pair, rows in sorted(of_pair.items())
        for name, found in counts.items()
    ]


def _read_answers(path: Path, count: int) -> dict[str, list[str]]:
    """Return criterion -> the answer of each item."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # spreadsheets of many countries write semicolons
            delimiter = ";" if file.readline().startswith("item;") else ","
            file.seek(0)
            rows = list(csv.DictReader(file, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"cannot read the sheet {str(path)!r} ({error}); check the path"
        ) from error
    columns = {"item", *CRITERIA}
    if not rows or not columns <= rows[0].keys():
        raise InputError(
            f"not a sheet: {str(path)!r} lacks the columns {', '.join(sorted(columns))}; "
            "fill in sheet.csv, or save the answers of sheet.html"
        )
    by_item = {row["item"]: row for row in rows}
    expected = [str(number) for number in range(1, count + 1)]
    if len(by_item) != len(rows) or by_item.keys() != set(expected):
        raise InputError(
            f"items of {str(path)!r} are not 1 to {count}, each once; use the sheet of this key"
        )
    found = {
        name: [(by_item[item][name] or "").strip().lower() for item in expected]
        for name in CRITERIA
    }
    _check_answers(path, found)
    return found


def _check_answers(path: Path, found: dict[str, list[str]]) -> None:
    for name, answers in found.items():
        missing = [str(number) for number, answer in enumerate(answers, 1) if not answer]
        if missing:
            raise InputError(
                f"{len(missing):,} answers are missing in {str(path)!r}: {name} of item "
                f"{', '.join(missing[:5])}; answer {', '.join(ANSWERS)}"
            )
        wrong = [answer for answer in answers if answer not in ANSWERS]
        if wrong:
            raise InputError(
                f"unknown answer in {str(path)!r}: {wrong[0]!r} to {name}; "
                f"answer {', '.join(ANSWERS)}"
            )


def _counts(key: Key, answers: Sequence[Sequence[str]]) -> Counts:
    counts = np.zeros((len(key.items), 3))
    for judged in answers:
        for row, (item, answer) in enumerate(zip(key.items, judged, strict=True)):
            side = ANSWERS.index(answer)
            counts[row, side if item.first_is_left else 2 - side] += 1
    return counts


def _tally(criterion: str, counts: Counts) -> Tally:
    judges = counts[0].sum()
    first, tie, second = (counts.mean(axis=0) / judges).tolist()
    preference = (counts[:, 2] - counts[:, 0]) / judges
    low, high = interval(resample({criterion: preference[:, None]})[criterion])
    agreement = fleiss_kappa(counts) if judges > 1 else None
    return Tally(criterion, first, tie, second, float(preference.mean()), low, high, agreement)


def fleiss_kappa(counts: Counts) -> float:
    """Return the agreement beyond chance (Fleiss 1971): 1 is perfect, 0 what chance gives.

    counts: (N, k) number of judges that chose each of k answers, the same sum >= 2 in each row.
    """
    judges = counts[0].sum()
    observed = ((counts * (counts - 1)).sum(axis=1) / (judges * (judges - 1))).mean()
    expected = ((counts.mean(axis=0) / judges) ** 2).sum()
    # one answer to everything: agreement and chance are both perfect
    return 1.0 if expected == 1 else float((observed - expected) / (1 - expected))
