"""What `a2.data.json_items` promises."""

import pytest

from a2.data.json_items import BadItem, key_member, list_member, member, text_member

ITEM = {"text": "a", "list": [1], "number": 3, "flag": True, "none": None}


def test_members_of_the_right_type_are_given():
    assert member(ITEM, "none") is None
    assert text_member(ITEM, "text") == "a"
    assert list_member(ITEM, "list") == [1]
    assert key_member(ITEM, "number") == 3
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
    ],
)
def test_anything_else_is_a_bad_item_with_a_reason(read, item, key, reason):
    with pytest.raises(BadItem) as caught:
        read(item, key)
    assert str(caught.value) == reason
