"""Name lists of a detector: one class per line, synonyms separated by commas.

The layout of bottom-up-attention's data/genome/1600-400-20 (`objects_vocab.txt`,
`attributes_vocab.txt`): "tennis racket,tennis racquet" is one class, named "tennis racket".
"""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_text


@dataclass(frozen=True)
class NameList:
    """Classes of a list. names: of each class; ids: class id of every name and synonym."""

    names: tuple[str, ...]
    ids: dict[str, int]


def read_name_list(path: Path) -> NameList:
    """Read a list; names are stripped and in lower case, empty lines are skipped.

    Raises InputError if there is no name or if two classes share one.
    """
    names: list[str] = []
    ids: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        synonyms = [name.strip() for name in line.lower().split(",") if name.strip()]
        for name in synonyms:
            # a synonym may be repeated within its class
            if ids.setdefault(name, len(names)) != len(names):
                raise InputError(
                    f"line {number} of {str(path)!r} repeats {name!r}, a name of "
                    f"{names[ids[name]]!r}; keep one"
                )
        names += synonyms[:1]
    if not names:
        raise InputError(
            f"no names in {str(path)!r}; write one class per line, synonyms separated by commas"
        )
    return NameList(tuple(names), ids)
