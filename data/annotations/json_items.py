"""Items of a JSON list: their members, checked for type."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from a2cap.data.errors import InputError

_LARGEST_COORDINATE = 2**24
"""Pixels; float32 represents every integer up to here."""


class BadItem(Exception):
    """Raised when an item cannot be used, with the reason; the caller adds the item's position."""


def member(item: object, key: str) -> object:
    """Return the member `key` of a JSON object; BadItem if there is none."""
    if not isinstance(item, dict):
        raise BadItem("not a JSON object")
    if key not in item:
        raise BadItem(f"no key {key!r}")
    value: object = item[key]
    return value


def text_member(item: object, key: str) -> str:
    """Return the string under `key`."""
    value = member(item, key)
    if not isinstance(value, str):
        raise BadItem(f"{key!r} is not a string")
    return value


def list_member(item: object, key: str) -> list[object]:
    """Return the list under `key`."""
    value = member(item, key)
    if not isinstance(value, list):
        raise BadItem(f"{key!r} is not a list")
    return value


def key_member(item: object, key: str) -> int | str:
    """Return the integer or string under `key`, which identifies another item."""
    value = member(item, key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadItem(f"{key!r} is neither an integer nor a string")
    return value


def integer_member(item: object, key: str) -> int:
    """Return the integer under `key`."""
    value = member(item, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadItem(f"{key!r} is not an integer")
    return value


def pixel_numbers(values: Sequence[object], name: str) -> list[float]:
    """Return the four numbers of a box; `name` is their name in the reason of a BadItem."""
    numbers = [
        float(number)
        for number in values
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
