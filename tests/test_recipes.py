"""Recipes of CONTRIBUTING.md: an example of each, applied to a copy, passes the tests it names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = {
    "Add a fusion": "fusion",
    "Add a metric": "metric",
    "Add a captioner": "captioner",
    "Add a layout of annotations": "annotations",
}
"""Heading of a recipe -> name of its example in tests/recipes."""

PYTEST = ("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "quick")

# the environment's a2cap is this checkout, in child processes too
FINDER = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("configs", "data", "extract", "model", "pipeline")
FOLDERS = {"a2cap": ROOT / "a2cap"} | {f"a2cap.{name}": ROOT / name for name in NAMES}

class Copy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if folder := FOLDERS.get(name):
            file = folder / "__init__.py"
            return spec_from_file_location(name, file, submodule_search_locations=[str(folder)])

sys.meta_path.insert(0, Copy)
"""


def named_tests(heading):
    """Return the tests that a recipe names in its last line."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"`(tests/[\w/.]+)`", section.partition("\nTests: ")[2])


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the checkout that its tests import."""
    copy = tmp_path / "copy"
    kept_out = (".git", ".venv", ".hypothesis", "*_cache", "__pycache__", "artifacts", "shared")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*kept_out))
    (copy / "site").mkdir()
    (copy / "site" / "sitecustomize.py").write_text(FINDER)
    return copy


def apply_example(name, copy):
    """Apply the example of a recipe to a copy."""
    example = ROOT / "tests" / "recipes" / f"{name}.patch"
    subprocess.run(["git", "apply", example], cwd=copy, check=True)


def run(copy, *command):
    """Run a Python module in a copy; return its exit status and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "site")}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_the_examples_of_the_recipes_pass_the_tests_that_they_name(copy):
    # one copy and process for all: their imports take longer than most of their tests
    for name in RECIPES.values():
        apply_example(name, copy)
    folders = ("a2cap", "data", "extract", "model", "pipeline", "tests")
    assert run(copy, "ruff", "check", "-q", *folders) == (0, "")
    assert run(copy, "ruff", "format", "-q", "--check", *folders) == (0, "")
    tests = dict.fromkeys(path for heading in RECIPES for path in named_tests(heading))
    status, printed = run(copy, *PYTEST, "-m", "not slow", *tests)
    assert status == 0, printed
    assert re.search(r"^\d+ passed", printed, re.MULTILINE), printed


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_names_tests_that_exist(heading):
    tests = named_tests(heading)
    assert tests
    assert [path for path in tests if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_a_fusion_without_its_transcription_fails_a_named_test(copy):
    apply_example("fusion", copy)
    shutil.copy(ROOT / "tests/model/transcription.py", copy / "tests/model/transcription.py")
    status, printed = run(copy, *PYTEST, "-x", "tests/model/test_equations.py")
    assert status == 1
    assert "FAILED tests/model/test_equations.py" in printed
