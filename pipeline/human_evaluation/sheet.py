"""The sheet of a human evaluation: pairs of captions, shuffled and blinded (A2, Table 4).

A folder has `sheet.html`, which a judge opens and whose answers the browser saves as a CSV file;
`sheet.csv`, the same to fill in by hand; and `key.json`, which states whose caption is on which
side and is kept from the judges.
"""

import csv
import random
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.paths import require_folder
from a2cap.data.image_ids import find_images, sample_ids
from a2cap.pipeline.report.html import write_page
from a2cap.pipeline.report.image_card import thumbnail

CRITERIA = {
    "naturalness": "Which reads more like a sentence that a person wrote?",
    "relevance": "Which describes this image more correctly?",
    "richness": "Which says more about this image?",
}
"""The criteria of Table 4, and the question that a judge answers for each."""

ANSWERS = ("left", "tie", "right")
SHEET, PAGE, KEY = "sheet.csv", "sheet.html", "key.json"

_FORMULA = re.compile(r"[\s\x00-\x1f\ufeff\u200b]*[=+\-@＝＋－＠]|[\t\r\n]")


class Item(BaseModel):
    """One pair of captions; pair: positions of their captioners among the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_id: str
    first_is_left: bool
    pair: tuple[int, int] = (0, 1)


class Key(BaseModel):
    """Content of key.json: the names of the captioners, and the items in the sheet's order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    seed: int
    items: list[Item]

    @classmethod
    def read(cls, folder: Path) -> "Key":
        """Read the key of a sheet; raise InputError if the folder has none."""
        try:
            return cls.model_validate(read_json(folder / KEY))
        except ValidationError as error:
            raise InputError(
                f'not a key: {str(folder / KEY)!r}; run "a2 human sheet" again'
            ) from error


def write_sheet(
    folder: Path, captions: Mapping[str, Mapping[str, str]], images: Path, *, count: int, seed: int
) -> Key:
    """Write the sheet of `count` images into a new folder and return its key.

    captions: name of the captioner -> image id -> caption, of two captioners, or of three, each two
    of which are then compared. Images with equal captions are left out: nobody can tell them apart.
    Raises InputError if the captioners share too few images, an image file is missing, or the
    folder exists, ConfigError without `images`.
    """
    names, every = tuple(captions), list(captions.values())
    shared = set.intersection(*(set(one) for one in every))
    different = sorted(i for i in shared if len({one[i] for one in every}) == len(every))
    if len(different) < count:
        raise InputError(
            f"{len(different):,} images have different captions in all files, fewer than "
            f"{count:,}; lower --count"
        )
    generator = random.Random(seed)
    drawn = generator.sample(different, count)
    items = [
        Item(image_id=i, first_is_left=generator.random() < 0.5, pair=pair)
        for pair in combinations(range(len(every)), 2)
        for i in drawn
    ]
    if len(every) > 2:  # an image's pairs are not next to each other
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
            "left": every[item.pair[not item.first_is_left]][item.image_id],
            "right": every[item.pair[item.first_is_left]][item.image_id],
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
        writer.writerows({name: _as_text(str(row[name])) for name in row} for row in rows)
    small = (thumbnail(files[item.image_id]) for item in items)
    shown = [{**row, "thumbnail": image} for row, image in zip(rows, small, strict=True)]
    write_page(folder / PAGE, "human.html", items=shown, criteria=CRITERIA, answers=ANSWERS)
    key = Key(names=names, seed=seed, items=items)
    write_json(folder / KEY, key.model_dump(mode="json"))
    return key


def _as_text(cell: str) -> str:
    # a spreadsheet would compute a caption that begins like a formula, also after white space
    return f"'{cell}" if _FORMULA.match(cell) else cell
