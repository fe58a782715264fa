import gzip
import json

import pytest

from a2cap.data.annotations.word_groups import read_word_groups
from a2cap.data.errors import InputError


@pytest.fixture
def groups(tmp_path):
    """Writes a file of groups; returns its path."""

    def write(content):
        path = tmp_path / "words.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_groups_are_read_in_their_order_and_words_in_lower_case(groups, tmp_path):
    content = {"kinds": ["Ball", "balls"], "colours": ["red"]}
    expected = [("kinds", {"ball", "balls"}), ("colours", {"red"})]
    path = groups(content)
    assert list(read_word_groups(path).items()) == expected
    packed = tmp_path / "words.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_word_groups(packed).items()) == expected


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            ["red"],
            "not word groups: {path!r} (not an object of lists); "
            'write {{"colours": ["red", …], …}} with at least one group',
        ),
        (
            {},
            "not word groups: {path!r} (not an object of lists); "
            'write {{"colours": ["red", …], …}} with at least one group',
        ),
        (
            {"colours": []},
            "group 'colours' of {path!r} is not a list of words; add some, or remove it",
        ),
        (
            {"colours": {"red": 1}},
            "group 'colours' of {path!r} is not a list of words; add some, or remove it",
        ),
        (
            {"kinds": ["ball", "hot dog"]},
            "group 'kinds' of {path!r} contains 'hot dog', not a single word; "
            "write words without spaces",
        ),
        (
            {"counts": ["two", 3]},
            "group 'counts' of {path!r} contains 3, not a single word; write words without spaces",
        ),
        (
            {"kinds": [""]},
            "group 'kinds' of {path!r} contains '', not a single word; write words without spaces",
        ),
        (
            {"kinds": ["apple", "orange"], "colours": ["red", "Orange"]},
            "'orange' is in groups 'kinds' and 'colours' of {path!r}; keep it in one",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_fault(groups, content, text):
    path = groups(content)
    with pytest.raises(InputError) as raised:
        read_word_groups(path)
    assert str(raised.value) == text.format(path=str(path))


def test_a_file_that_is_no_json_is_refused(groups):
    with pytest.raises(InputError, match=r"^not JSON: "):
        read_word_groups(groups("{kinds"))
