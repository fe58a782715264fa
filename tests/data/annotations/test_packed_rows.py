"""Packed rows against lists and dictionaries of Python."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.annotations.packed_rows import PackedRows

KEYS = st.lists(st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=100)


@given(KEYS)
def test_rows_come_back_in_order_and_in_groups_of_equal_keys(keys):
    rows, groups = PackedRows(), {}
    for number, key in enumerate(keys):
        rows.append({"n": number})
        groups.setdefault(key, []).append({"n": number})
    assert [*rows] == [{"n": number} for number in range(len(keys))]
    assert [*rows.since(33)] == [*rows][33:]
    assert [*rows.groups(array("q", keys), range(len(keys)))] == [*groups.values()]
