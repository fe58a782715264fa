"""Members of a JSON object in a file, which is read again for each use of them."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile
from typing import Any

import numpy as np

from a2cap.data.files.json_file import JsonObject

_MOST_KEYS = 100
_TELLING_KEYS = ("images", "annotations", "data", "info", "dataset")


class Members:
    """Members of an object in the order of its file: items of lists, and other values.

    firsts: the values of the first keys and of those that tell a form; of a list, its first item.
    has_more: True if text follows the object. repeated_ids: numbers of the ids that several of its
    `annotations` have.
    """

    def __init__(self, opened: Callable[[], JsonObject]) -> None:
        """Read the object that is opened; raise InputError for a key twice, and invalid JSON."""
        self._opened, self.firsts = opened, dict[str, Any]()
        keys, ids, json_object = array("q"), array("q"), opened()
        for key, place, value in json_object.members():
            if not place:
                keys.append(hash(key))
                # an object of more keys is one of images
                if len(self.firsts) < _MOST_KEYS or key in _TELLING_KEYS:
                    self.firsts[key] = value if place is None else [value]
            if key == "annotations" and isinstance(value, dict) and "id" in value:
                ids.append(number_of(value["id"]))
        if repeated := _repeated(keys):
            names = Counter(key for key, place, _ in self if not place and hash(key) in repeated)
            raise json_object.repeated_key(names.most_common(1)[0][0])
        self.has_more, self.repeated_ids = json_object.has_more, _repeated(ids)

    def __iter__(self) -> Iterator[tuple[str, int | None, Any]]:
        return self._opened().members()

    def listed(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield the items of the list under a key with their positions."""
        if key in self.firsts:
            members = dropwhile(lambda member: member[0] != key, self)
            for _, place, item in takewhile(lambda member: member[0] == key, members):
                if place is not None:
                    yield f"{key}[{place}]", item


def number_of(key: object) -> int:
    """Return a number for an id, which another id has once in 10^19 cases; 1 and "1" are two."""
    return hash(repr(key))


def _repeated(numbers: "array[int]") -> set[int]:
    ordered = np.sort(numbers)
    return {*ordered[1:][ordered[1:] == ordered[:-1]].tolist()}
