"""One JSON object out of a list of many: its members, checked for type."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from a2cap.data.errors import InputError

_LARGEST_COORDINATE = 2**24
"""Pixels; float32 has every whole number up to here."""


class BadItem(Exception):
    """One item cannot be used; the text is the reason, and the caller knows the item's place."""


def member(item: object, key: str) -> object:
    """The member `key` of a JSON object; raises BadItem where there is none."""
    if not isinstance(item, dict):
        raise BadItem("not a JSON object")
    if key not in item:
        raise BadItem(f"no key {key!r}")
    value: object = item[key]
    return value


def text_member(item: object, key: str) -> str:
    """The string under `key`."""
    value = member(item, key)
    if not isinstance(value, str):
        raise BadItem(f"{key!r} is not a string")
    return value


def list_member(item: object, key: str) -> list[object]:
    """The list under `key`."""
    value = member(item, key)
    if not isinstance(value, list):
        raise BadItem(f"{key!r} is not a list")
    return value


def key_member(item: object, key: str) -> int | str:
    """The integer or string under `key`, which names something else in the file."""
    value = member(item, key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadItem(f"{key!r} is neither an integer nor a string")
    return value


def integer_member(item: object, key: str) -> int:
    """The integer under `key`."""
    value = member(item, key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadItem(f"{key!r} is not an integer")
    return value


def pixel_numbers(values: Sequence[object], name: str) -> list[float]:
    """The four numbers of a box; `name` says in the reason what is not four numbers of pixels."""
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
    """Call `read` with each of the items that stand under `key` in the file `path`.

    Raises InputError with the item's place where `read` raises BadItem or InputError.
    """
    for index, item in enumerate(items):
        try:
            read(item)
        except (BadItem, InputError) as error:
            raise InputError(
                f"{key}[{index}] of {str(path)!r}: {error}; mend or remove that item"
            ) from error
