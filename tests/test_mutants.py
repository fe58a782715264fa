"""Mutants are single changes of the code, and are tried on a copy of the checkout."""

import ast
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.mutants import FOLDERS, ROOT, changes_of, draw, mutant_of

TESTS = ["tests/data/sources/test_source.py", "tests/data/sources/test_hostile_names.py"]

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
    mutants = [mutant_of("clip.py", SOURCE, *change) for change in changes_of(SOURCE)]
    assert {mutant.change for mutant in mutants} == {
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
    assert len({mutant.source for mutant in mutants} - {plain}) == len(mutants)
    spans = {mutant.change: (mutant.span, mutant.at_import) for mutant in mutants}
    assert spans["3 -> 4"] == ((3, 8), True)
    assert spans["7 -> 8"] == spans["not top -> top"] == ((5, 5), False)
    assert spans["note(value) -> pass"] == ((7, 7), False)


def test_samples_are_repeatable_and_of_the_folder():
    folder = "data/sources"
    assert folder in FOLDERS.split()
    drawn = list(islice(draw(folder, 0), 5))
    assert drawn == list(islice(draw(folder, 0), 5))
    assert all(mutant.file.startswith(f"{folder}/") for mutant in drawn)


@pytest.mark.slow
def test_changes_that_a_test_notices_are_killed_and_others_survive():
    command = [sys.executable, "-m", "tests.mutants", "--count", "4", "--folder", "data/sources"]
    ran = subprocess.run([*command, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "of 4 killed" in ran.stdout, ran.stdout + ran.stderr
    results = Path(ran.stdout.splitlines()[0].split("'")[1])
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == 4 and {row["end"] for row in rows} <= {"killed", "SURVIVED"}
    assert any(row["by"].startswith("tests/data/sources/") for row in rows)
