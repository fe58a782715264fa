import gzip

import pytest

from a2cap.data.annotations.word_groups import read_word_groups
from tests.data.messages import message_of, written


def test_groups_keep_their_order_and_words_are_in_lower_case(tmp_path):
    path = written(tmp_path, {"kinds": ["Ball", "balls"], "colours": ["red"]})
    expected = [("kinds", {"ball", "balls"}), ("colours", {"red"})]
    assert list(read_word_groups(path).items()) == expected
    packed = tmp_path / "words.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_word_groups(packed).items()) == expected


FORM = "not word groups: {path} (not an object of lists)"
EXAMPLE = 'write {"colours": ["red", …], …} with at least one group'
NO_LIST = "group 'colours' of {path} is not a list of words; add some, or remove it"
NO_WORD = "group 'kinds' of {path} contains {word}, not a single word; write words without spaces"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["red"], f"{FORM}; {EXAMPLE}"),
        ({}, f"{FORM}; {EXAMPLE}"),
        ({"colours": []}, NO_LIST),
        ({"colours": {"red": 1}}, NO_LIST),
        ({"kinds": ["ball", "hot dog"]}, NO_WORD.replace("{word}", "'hot dog'")),
        ({"kinds": ["two", 3]}, NO_WORD.replace("{word}", "3")),
        ({"kinds": [""]}, NO_WORD.replace("{word}", "''")),
        (
            {"kinds": ["apple", "orange"], "colours": ["red", "Orange"]},
            "'orange' is in groups 'kinds' and 'colours' of {path}; keep it in one",
        ),
        (
            "{kinds",
            "not JSON: {path} (line 1, column 2: Expecting property name enclosed in "
            "double quotes); fix the file or copy it again",
        ),
    ],
)
def test_a_file_of_another_form_is_rejected_with_its_fault(tmp_path, content, text):
    path = written(tmp_path, content)
    assert message_of(read_word_groups, path) == text.replace("{path}", repr(str(path)))
