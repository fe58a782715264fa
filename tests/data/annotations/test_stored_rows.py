"""Stored rows, against lists and dictionaries of Python."""

import gc
import pickle
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.annotations.stored_rows import StoredRows
from tests.data.messages import message_of

KEYS = st.lists(st.text(max_size=1), max_size=100)


@given(KEYS)
def test_rows_come_back_in_order_by_place_by_key_and_in_groups_of_equal_keys(keys):
    rows, groups = StoredRows(lambda *row: row), {}
    for number, key in enumerate(keys):
        rows.append((number, {"k": key}), key)
        groups.setdefault(key, []).append((number, {"k": key}))
    expected = [(number, {"k": key}) for number, key in enumerate(keys)]
    assert [*rows] == [rows[number] for number in range(len(rows))] == expected
    assert rows == expected
    assert rows[3:50] == tuple(expected[3:50])
    assert [*rows.groups()] == [*groups.values()]
    for key, group in groups.items():
        assert [*rows.of_key(key)] == [(row[0], row) for row in group]
    assert [*rows.of_key("none")] == []


def test_a_place_beyond_the_end_is_an_index_error():
    with pytest.raises(IndexError):
        StoredRows(tuple)[0]


def test_rows_are_pickled_as_a_tuple_of_their_items():
    rows = StoredRows(lambda *row: row)
    rows.append((1, "a dog"))
    assert pickle.loads(pickle.dumps(rows)) == ((1, "a dog"),)


def test_a_full_disk_is_an_error_with_a_remedy():
    rows = StoredRows(lambda *row: row)
    rows._base.execute("pragma max_page_count = 20")
    assert message_of(lambda: [rows.append(["a" * 500]) for _ in range(1000)]) == (
        "cannot store annotations in a temporary file (database or disk is full); free disk space, "
        "or set TMPDIR to a folder of another disk"
    )


def test_the_database_is_closed_with_its_rows():
    rows = StoredRows(tuple)
    connection = rows._base
    del rows
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")
