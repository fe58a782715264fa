from pathlib import Path

import pytest

from a2cap.data.annotations.json_items import (
    BadItem,
    integer_member,
    key_member,
    list_member,
    member,
    pixel_numbers,
    read_each,
    text_member,
)
from a2cap.data.errors import InputError
from tests.data.messages import message_of

ITEM = {"text": "a", "list": [1], "number": 3, "flag": True, "none": None}


def test_members_of_the_right_type_are_returned():
    assert member(ITEM, "none") is None
    assert text_member(ITEM, "text") == "a"
    assert list_member(ITEM, "list") == [1]
    assert key_member(ITEM, "number") == 3
    assert integer_member(ITEM, "number") == 3
    assert key_member(ITEM, "text") == "a"


@pytest.mark.parametrize(
    ("read", "item", "key", "reason"),
    [
        (member, [1], "text", "not a JSON object"),
        (member, ITEM, "other", "no key 'other'"),
        (text_member, ITEM, "number", "'number' is not a string"),
        (list_member, ITEM, "text", "'text' is not a list"),
        (key_member, ITEM, "list", "'list' is neither an integer nor a string"),
        (key_member, ITEM, "flag", "'flag' is neither an integer nor a string"),
        (integer_member, ITEM, "text", "'text' is not an integer"),
        (integer_member, ITEM, "flag", "'flag' is not an integer"),
    ],
)
def test_anything_else_is_a_bad_item_with_a_reason(read, item, key, reason):
    assert message_of(read, item, key, error=BadItem) == reason


def test_four_numbers_of_a_box_are_floats():
    assert pixel_numbers([1, 2.5, -3, 2**24], "'bbox'") == [1.0, 2.5, -3.0, 2.0**24]


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, "4"], [1, 2, 3, 1e30], [1, 2, 3, float("nan")]]
)
def test_anything_but_four_numbers_of_pixels_is_a_bad_item(values):
    message = message_of(pixel_numbers, values, "'bbox'", error=BadItem)
    assert message == f"'bbox' is not four numbers of pixels: {values}"


@pytest.mark.parametrize("error", [BadItem("torn"), InputError("torn")])
def test_an_unreadable_item_is_reported_with_its_position(error):
    seen = []

    def read(item):
        seen.append(item)
        if item == "b":
            raise error

    message = message_of(read_each, "abc", read, path=Path("x.json"), key="letters")
    assert message == "letters[1] of 'x.json': torn; fix or remove that item"
    assert seen == ["a", "b"]
