"""Faults and promises in docs/, each with existing tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page):
    """Return first column -> row of the tables whose last column names tests."""
    rows_by_head, in_table = {}, False
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            in_table = False
        elif line.endswith("| shown by |"):
            in_table = True
        elif in_table and not line.startswith("|---"):
            rows_by_head[line.split(" | ")[0].removeprefix("| ")] = line
    return rows_by_head


@cache
def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", ["faults.md", "promises.md"])
def test_every_row_names_existing_tests(page):
    for first, row in rows(page).items():
        named = NAMED.findall(row)
        assert named, f"{first}: names no test"
        for path, name in named:
            assert name in functions_of(path), f"{first}: {path} has no {name}"


def test_every_promise_has_a_row():
    assert [name.split(" ")[0] for name in rows("promises.md")] == [f"P{n}" for n in range(1, 9)]
