"""One JSON object out of a list of many: its members, checked for type."""


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
