"""Items of a JSON list: their members, checked for type."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from a2cap.data.errors import InputError

Value = TypeVar("Value")

_LARGEST_COORDINATE = 2**24
"""Pixels; float32 represents every integer up to here."""


class BadItem(Exception):
    """Raised when an item cannot be used, with the reason; the caller adds the item's position."""


def keys_of(item: Mapping[str, object]) -> str:
    """Return the first keys of a JSON object, for a message."""
    return ", ".join(f"{key!r:.30}" for key in list(item)[:8])


def member(item: object, key: str) -> object:
    """Return the member `key` of a JSON object; BadItem if there is none."""
    if not isinstance(item, dict):
        raise BadItem("not a JSON object")
    if key not in item:
        raise BadItem(f"no key {key!r}")
    value: object = item[key]
    return value


def _typed_member(item: object, key: str, kind: type[Value], problem: str) -> Value:
    value = member(item, key)
    if not isinstance(value, kind) or isinstance(value, bool):  # True is an int in Python
        raise BadItem(f"{key!r} {problem}")
    return value


text_member = partial(_typed_member, kind=str, problem="is not a string")
"""Return the string under a key of an item."""
list_member: Callable[[object, str], list[object]] = partial(
    _typed_member, kind=list, problem="is not a list"
)
"""Return the list under a key of an item."""
integer_member = partial(_typed_member, kind=int, problem="is not an integer")
"""Return the integer under a key of an item."""


def key_member(item: object, key: str) -> int | str:
    """Return the integer or string under `key`, which identifies another item."""
    if isinstance(item, dict) and isinstance(item.get(key), str):
        return text_member(item, key)
    return _typed_member(item, key, int, "is neither an integer nor a string")


def pixel_numbers(values: Sequence[object], name: str) -> list[float]:
    """Return the four numbers of a box; `name` is their name in the reason of a BadItem."""
    numbers = [
        float(number)
        for number in values
        # NaN fails the comparison too
        if isinstance(number, int | float) and abs(number) <= _LARGEST_COORDINATE
    ]
    if len(numbers) != 4 or len(values) != 4:
        raise BadItem(f"{name} is not four numbers of pixels: {values!s:.60}")
    return numbers


def read_each(
    items: Iterable[object], read: Callable[[object], None], *, path: Path, key: str
) -> None:
    """Call `read` with each of the items under `key` in the file `path`.

    Raises InputError with the item's position if `read` raises BadItem or InputError.
    """
    for index, item in enumerate(items):
        try:
            read(item)
        except (BadItem, InputError) as error:
            raise InputError(
                f"{key}[{index}] of {str(path)!r}: {error}; fix or remove that item"
            ) from error
