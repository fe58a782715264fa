"""Faults and promises in docs/, each with existing tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

IMAGES = "zero bytes, HTML, CMYK, gray, palette, RGBA, 16-bit PNG, EXIF orientation 6, GIF"
ANNOTATIONS = "not JSON, missing key, duplicate ids, unknown image, empty caption, NaN, symlink out"
FAULTS = {
    *(f"image: {fault}" for fault in IMAGES.split(", ")),
    *(f"annotations: {fault}" for fault in ANNOTATIONS.split(", ")),
    "kill -9 at named points and random times, in each stage",
    "disk full: a limit on file sizes",
    "disk full: a small file system",
    "checkpoint truncated (0, 10 bytes, half, −1)",
    "checkpoint with a flipped bit",
    "LMDB truncated",
    "LMDB flipped, in a record",
    "LMDB flipped, in its tree",
    "image: truncated at 50, 90 and 99 %",
    "image: 30,000 × 30,000 one-bit PNG of 109 KB",
    "annotations: a 10 MB caption",
    "annotations: `file_name` = `../../etc/passwd`",
    "annotations: `file_name` absolute",
    "annotations: NUL in `file_name`",
    "NaN loss",
    "SIGTERM during a save",
    "SIGTERM during a save, twice",
    "two runs at once",
    "holder killed",
    "clock back a year",
    "read-only directory",
    "path with spaces and unicode",
    "malicious pickle as `.pth`",
    "malicious pickle as `.pkl`",
    "map growth at every batch",
    "shards: 1 against 3",
    "shards: one missing",
    "shards: overlapping",
}
"""The least that faults.md covers."""


def rows(page):
    """Return first column -> row of the tables whose last column names tests."""
    found, in_table = {}, False
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            in_table = False
        elif line.endswith("| shown by |"):
            in_table = True
        elif in_table and not line.startswith("|---"):
            found[line.split(" | ")[0].removeprefix("| ")] = line
    return found


@cache
def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_required_fault_has_a_row():
    assert set(rows("faults.md")) >= FAULTS


@pytest.mark.parametrize("page", ["faults.md", "promises.md"])
def test_every_row_names_existing_tests(page):
    for first, row in rows(page).items():
        named = NAMED.findall(row)
        assert named, f"{first}: names no test"
        for path, name in named:
            assert name in functions_of(path), f"{first}: {path} has no {name}"


def test_every_promise_has_a_row():
    assert [name.split(" ")[0] for name in rows("promises.md")] == [f"P{n}" for n in range(1, 9)]
