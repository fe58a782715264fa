"""Imports of particular packages, and headers and names of modules."""

import ast
from pathlib import Path

import pytest

from tests.test_structure import MAY_IMPORT, ROOT, SOURCE, imported_names, named

MAY_IMPORT_OPENCV = {"data/scenes/render.py", "data/scenes/drawing.py"}


def importers(package):
    """Return the modules that import a package."""
    return {named(path) for path in SOURCE if package in imported_names(path)}


def imported_at_load(path):
    """Return the packages that a module imports when it is loaded, not in its functions."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = [str(node.module) for node in body if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[0] for name in names}


def test_opencv_is_imported_only_by_the_extractor_and_the_drawing_of_scenes():
    found = importers("cv2")
    assert {name for name in found if not name.startswith("extract/")} == MAY_IMPORT_OPENCV


def test_heavy_packages_are_imported_where_they_are_used():
    loaded = imported_at_load(ROOT / "pipeline" / "cli" / "main.py")
    assert not loaded & {"torch", "cv2", "h5py", "lmdb", "numpy", "rich"}


def test_only_the_command_line_imports_click():
    assert {"/".join(Path(name).parts[:2]) for name in importers("click")} == {"pipeline/cli"}


@pytest.mark.parametrize("path", SOURCE, ids=named)
def test_no_module_prints(path):
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    assert "print" not in [function.id for function in called if isinstance(function, ast.Name)]


@pytest.mark.parametrize("path", SOURCE, ids=named)
def test_every_module_has_a_docstring(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.split("\n\n")[0].strip().endswith((".", ":"))


def test_no_module_has_a_vague_name():
    vague = {"utils", "util", "common", "misc", "helpers", "helper", "manager", "base", "core"}
    folders = [*MAY_IMPORT, "tests", "benchmarks"]
    names = {path.stem.removeprefix("test_") for f in folders for path in (ROOT / f).rglob("*.py")}
    assert not names & vague
