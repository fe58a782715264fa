"""The names that a detector knows, one class a line with its synonyms after commas.

The layout of bottom-up-attention's data/genome/1600-400-20 (`objects_vocab.txt`,
`attributes_vocab.txt`): "tennis racket,tennis racquet" is one class, named by its first word form.
"""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_text


@dataclass(frozen=True)
class NameList:
    """names: of each class, in the file's order. places: class of every name and synonym."""

    names: tuple[str, ...]
    places: dict[str, int]


def read_name_list(path: Path) -> NameList:
    """Names in lower case without the space around them; empty lines are passed over.

    Raises InputError where there is no name, and where one name stands for two classes.
    """
    names: list[str] = []
    places: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        synonyms = [name.strip() for name in line.lower().split(",") if name.strip()]
        for name in synonyms:
            if places.setdefault(name, len(names)) != len(names):
                raise InputError(
                    f"line {number} of {str(path)!r} has {name!r}, which stands above for "
                    f"{names[places[name]]!r}; keep one"
                )
        names += synonyms[:1]
    if not names:
        raise InputError(
            f"no names in {str(path)!r}; write one class a line, its synonyms after commas"
        )
    return NameList(tuple(names), places)
