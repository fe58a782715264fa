"""Human judgement of two captioners, blind and side by side (A2, Table 4): `a2 human`.

A folder has `sheet.html`, which a judge opens and whose answers the browser saves as a CSV file;
`sheet.csv`, the same to fill in by hand; and `key.json`, which states whose caption is on which
side and is kept from the judges. The tally has wins, ties, losses, intervals and the judges'
agreement.
"""

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from a2cap.data.errors import InputError
from a2cap.data.files.csv_cell import as_text
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.paths import require_folder
from a2cap.data.files.sealed_folder import FileContent
from a2cap.data.image_ids import find_images, sample_ids
from a2cap.pipeline.metrics.bootstrap import interval, resample
from a2cap.pipeline.report.html import write_page
from a2cap.pipeline.report.image_card import thumbnail

CRITERIA = {
    "naturalness": "Which reads more like a sentence that a person wrote?",
    "relevance": "Which describes this image more correctly?",
    "richness": "Which says more about this image?",
}
"""The criteria of Table 4, and the question that a judge answers for each."""

ANSWERS = ("left", "tie", "right")
_LISTED = 5  # missing answers in a message
SHEET, PAGE, KEY = "sheet.csv", "sheet.html", "key.json"


class SheetItem(FileContent):
    """One pair of captions; pair: positions of their captioners among the names."""

    image_id: str
    first_is_left: bool
    pair: tuple[int, int] = (0, 1)


class SheetKey(FileContent):
    """Content of key.json: the names of the captioners, and the items in the sheet's order."""

    names: tuple[str, ...]
    seed: int
    items: list[SheetItem]

    @classmethod
    def read(cls, folder: Path) -> "SheetKey":
        """Read the key of a sheet; raise InputError if the folder has none."""
        try:
            return cls.model_validate(read_json(folder / KEY))
        except ValidationError as error:
            raise InputError(
                f'not a key: {str(folder / KEY)!r}; run "a2 human sheet" again'
            ) from error


def write_sheet(
    folder: Path, captions: Mapping[str, Mapping[str, str]], images: Path, *, count: int, seed: int
) -> SheetKey:
    """Write the sheet of `count` images into a new folder and return its key.

    captions: name of the captioner -> image id -> caption, of two captioners, or of three, each two
    of which are then compared. Images with equal captions are left out: nobody can tell them apart.
    Raises InputError if the captioners share too few images, an image file is missing, or the
    folder exists, ConfigError without `images`.
    """
    names, candidates = tuple(captions), list(captions.values())
    shared = set.intersection(*(set(run) for run in candidates))
    different = sorted(i for i in shared if len({run[i] for run in candidates}) == len(candidates))
    if len(different) < count:
        raise InputError(
            f"{len(different):,} images have different captions in all files, fewer than "
            f"{count:,}; lower --count"
        )
    generator = random.Random(seed)
    drawn = generator.sample(different, count)
    items = [
        SheetItem(image_id=i, first_is_left=generator.random() < 0.5, pair=pair)
        for pair in combinations(range(len(candidates)), 2)
        for i in drawn
    ]
    if len(candidates) > 2:  # an image's pairs are not next to each other
        generator.shuffle(items)
    files = find_images(require_folder(images, "--images"))
    if missing := [i for i in drawn if i not in files]:
        raise InputError(
            f"{len(missing):,} images are not in {str(images)!r}: {sample_ids(missing)}; "
            "name the folder of the captioned images"
        )
    rows = [
        {
            "item": number,
            "image": files[item.image_id].name,
            "left": candidates[item.pair[not item.first_is_left]][item.image_id],
            "right": candidates[item.pair[item.first_is_left]][item.image_id],
        }
        for number, item in enumerate(items, 1)
    ]
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise InputError(f"the folder exists: {str(folder)!r}; name a new one") from error
    with (folder / SHEET).open("w", encoding="utf-8", newline="") as file:
        fields = ["item", "image", "left", "right", *CRITERIA]
        # in some countries an unquoted ";" begins another cell
        writer = csv.DictWriter(file, fields, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows({name: as_text(row[name]) for name in row} for row in rows)
    small = (thumbnail(files[item.image_id]) for item in items)
    shown = [{**row, "thumbnail": image} for row, image in zip(rows, small, strict=True)]
    write_page(folder / PAGE, "human.html", items=shown, criteria=CRITERIA, answers=ANSWERS)
    key = SheetKey(names=names, seed=seed, items=items)
    write_json(folder / KEY, key.model_dump(mode="json"))
    return key


Counts = NDArray[np.float64]
"""(N, 3): how many judges preferred the first captioner, neither, the second, for each item."""


@dataclass(frozen=True)
class Tally:
    """Result of one criterion for one pair of captioners, positions among the key's names.

    first, tie, second: shares of the answers, which sum to 1.
    difference: second - first, with its 95 % bootstrap interval over the items.
    agreement: Fleiss' kappa, None with one judge.
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


def tally(key: SheetKey, sheets: Sequence[Path]) -> list[Tally]:
    """Count the answers of each judge's sheet.

    Raises InputError for a sheet of another evaluation, missing or invalid answers, or the same
    sheet twice.
    """
    if repeated := [str(sheet) for sheet in sheets if sheets.count(sheet) > 1]:
        raise InputError(
            f"a judge would count twice: {repeated[0]!r}; name one file for each judge"
        )
    answers = [_read_answers(sheet, len(key.items)) for sheet in sheets]
    counts = {name: _counts(key, [sheet[name] for sheet in answers]) for name in CRITERIA}
    of_pair: dict[tuple[int, int], list[int]] = {}
    for row, item in enumerate(key.items):
        of_pair.setdefault(item.pair, []).append(row)
    return [
        replace(_tally(name, rows_of_sheets[rows]), pair=pair)
        for pair, rows in sorted(of_pair.items())
        for name, rows_of_sheets in counts.items()
    ]


def _read_answers(path: Path, count: int) -> dict[str, list[str]]:
    """Return criterion -> the answer of each item."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # spreadsheets of many countries write semicolons
            delimiter = ";" if file.readline().replace('"', "").startswith("item;") else ","
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
    answers = {
        name: [(by_item[item][name] or "").strip().lower() for item in expected]
        for name in CRITERIA
    }
    _check_answers(path, answers)
    return answers


def _check_answers(path: Path, answers_by_criterion: dict[str, list[str]]) -> None:
    missing = [
        f"{name} of item {number}"
        for name, answers in answers_by_criterion.items()
        for number, answer in enumerate(answers, 1)
        if not answer
    ]
    if missing:
        are = "answer is" if len(missing) == 1 else "answers are"
        listed = ", ".join(missing[:_LISTED]) + ", …" * (len(missing) > _LISTED)
        raise InputError(
            f"{len(missing):,} {are} missing in {str(path)!r}: {listed}; "
            f"answer {', '.join(ANSWERS)}"
        )
    for name, answers in answers_by_criterion.items():
        wrong = [answer for answer in answers if answer not in ANSWERS]
        if wrong:
            raise InputError(
                f"unknown answer in {str(path)!r}: {wrong[0]!r} to {name}; "
                f"answer {', '.join(ANSWERS)}"
            )


def _counts(key: SheetKey, answers: Sequence[Sequence[str]]) -> Counts:
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
