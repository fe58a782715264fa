"""Mutants are single changes of the code, and are tried on a copy of the checkout."""

import ast
import random

import pytest

from tests.mutants import (
    ROOT,
    TESTS,
    Mutant,
    changes_of,
    copy_checkout,
    is_killed,
    mutant_of,
    sample,
)

SOURCE = '''
def clip(value: int = 3, *, top: bool = False) -> int:
    """Return a value of at most 7."""
    logger.info("clip %d", 5)
    if value > 7 and not top:
        raise ValueError(f"{value + 1} is too large")
    note(value)
    return value * 2
'''


def test_each_mutant_is_one_change_of_behaviour():
    found = [mutant_of("clip.py", SOURCE, *change) for change in changes_of(SOURCE)]
    assert {mutant.change for mutant in found} == {
        "3 -> 4",
        "False -> True",
        "if value > 7 and (not top): -> if True:",
        "if value > 7 and (not top): -> if False:",
        "value > 7 and (not top) -> value > 7 or not top",
        "value > 7 -> value >= 7",
        "7 -> 8",
        "not top -> top",
        "note(value) -> pass",
        "value * 2 -> value / 2",
        "2 -> 3",
    }
    plain = ast.unparse(ast.parse(SOURCE))
    assert len({mutant.source for mutant in found} - {plain}) == len(found)


@pytest.mark.parametrize("folder", TESTS)
def test_samples_are_repeatable_and_of_the_folder(folder):
    drawn = sample(folder, 5, random.Random(0))
    assert drawn == sample(folder, 5, random.Random(0))
    assert len(drawn) == 5 and all(mutant.file.startswith(f"{folder}/") for mutant in drawn)


@pytest.mark.slow
def test_a_change_that_a_test_notices_is_killed_and_another_is_not(tmp_path):
    checkout = copy_checkout(tmp_path / "copy")
    file = "data/boxes.py"
    source = (ROOT / file).read_text()
    tests = ["tests/data/test_boxes.py"]
    assert is_killed(checkout, Mutant(file, 1, "", f"{source}\nraise SystemError"), tests)
    assert not is_killed(checkout, Mutant(file, 1, "", f"{source}\nunused = 1"), tests)
    assert (checkout / file).read_text() == source
