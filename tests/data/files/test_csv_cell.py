"""Cells of CSV files that a spreadsheet would compute."""

import ast
from pathlib import Path

import pytest

from a2cap.data.files.csv_cell import as_text

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("text", ["=1+1", " @x", "-2", "+3", "\t=x", "\ufeff=x", "＝1", "a\nb"[1:]])
def test_a_text_that_begins_like_a_formula_gets_an_apostrophe(text):
    assert as_text(text) == f"'{text}"


@pytest.mark.parametrize("cell", ["a dog", "a-b", "1", -0.5, 3, None, ""])
def test_other_cells_stay_as_they_are(cell):
    assert as_text(cell) is cell


@pytest.mark.slow
def test_every_module_that_writes_csv_guards_its_cells():
    writers = {}
    for box in ("data", "pipeline", "a2cap"):
        for path in (ROOT / box).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
            if calls & {"csv.writer", "csv.DictWriter"}:
                writers[path.name] = "as_text" in {
                    n.id for n in ast.walk(tree) if isinstance(n, ast.Name)
                }
    assert len(writers) >= 5
    assert all(writers.values()), writers
