"""Groups of words that are scored separately: a JSON object of lists, {"colours": ["red", …]}.

Plurals and other forms are separate words; a word belongs to one group only.
"""

from collections.abc import Mapping, Set
from pathlib import Path

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json

WordGroups = Mapping[str, Set[str]]
"""Words by group, each a token of PTB captions: lower case, without spaces."""


def read_word_groups(path: Path) -> dict[str, frozenset[str]]:
    """Return the groups in the order of the file, words in lower case.

    Raises InputError if the file has another form, a group is empty, or two groups share a word.
    """
    document = read_json(path)
    if not isinstance(document, dict) or not document:
        raise InputError(
            f"not word groups: {str(path)!r} (not an object of lists); "
            'write {"colours": ["red", …], …} with at least one group'
        )
    groups = {name: _words(name, words, path) for name, words in document.items()}
    owner: dict[str, str] = {}
    for group, words in groups.items():
        for word in sorted(words):
            first = owner.setdefault(word, group)
            if first != group:
                raise InputError(
                    f"{word!r} is in groups {first!r} and {group!r} of {str(path)!r}; "
                    "keep it in one"
                )
    return groups


def _words(group: str, words: object, path: Path) -> frozenset[str]:
    where = f"group {group!r} of {str(path)!r}"
    if not isinstance(words, list) or not words:
        raise InputError(f"{where} is not a list of words; add some, or remove it")
    for word in words:
        if not isinstance(word, str) or word.split() != [word]:
            raise InputError(
                f"{where} contains {word!r}, not a single word; write words without spaces"
            )
    # PTB tokens of captions are in lower case
    return frozenset(word.lower() for word in words)
