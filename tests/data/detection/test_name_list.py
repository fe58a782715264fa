from pathlib import Path

import pytest

from a2cap.data.detection.name_list import read_name_list
from tests.data.messages import message_of, written

VOCABULARY = Path(__file__).parents[3].parent / "shared/reference/visual_genome_vocab"


def test_a_line_is_a_class_named_by_its_first_name(tmp_path):
    found = read_name_list(written(tmp_path, "yolk\nstop sign,stopsign\ndog"))
    assert found.names == ("yolk", "stop sign", "dog")
    assert found.ids == {"yolk": 0, "stop sign": 1, "stopsign": 1, "dog": 2}


def test_case_space_and_empty_lines_are_ignored(tmp_path):
    found = read_name_list(written(tmp_path, "\n Dog , DOGGY,dog,\r\n\n,\ncat\n\n"))
    assert found.names == ("dog", "cat")
    assert found.ids == {"dog": 0, "doggy": 0, "cat": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog,hound\ncat\nwolf,Hound\n", "line 3 of {} repeats 'hound', a name of 'dog'; keep one"),
        (" \n,\n", "no names in {}; write one class per line, synonyms separated by commas"),
    ],
)
def test_a_list_without_names_or_with_a_name_of_two_classes_is_rejected(tmp_path, text, message):
    path = written(tmp_path, text)
    assert message_of(read_name_list, path) == message.format(repr(str(path)))


@pytest.mark.shared
@pytest.mark.skipif(not VOCABULARY.is_dir(), reason="needs ../shared/reference")
@pytest.mark.parametrize(
    ("file", "classes", "names", "alias"),
    [
        ("objects_vocab.txt", 1600, 1625, ("fridge", "refrigerator")),
        ("attributes_vocab.txt", 400, 410, ("grey", "gray")),
    ],
)
def test_the_published_lists_are_1600_classes_and_400_attributes(file, classes, names, alias):
    found = read_name_list(VOCABULARY / file)
    assert (len(found.names), len(found.ids)) == (classes, names)
    assert found.names[found.ids[alias[0]]] == alias[1]
