"""Imports of particular packages, and headers and names of modules."""

import ast
from pathlib import Path

from tests.test_structure import MAY_IMPORT, ROOT, SOURCE, imported_names, named, tree

MAY_IMPORT_OPENCV = {"data/scenes/render.py", "data/scenes/drawing.py"}


def importers(package):
    """Return the modules that import a package."""
    return {named(path) for path in SOURCE if package in imported_names(path)}


def imported_at_load(path):
    """Return the packages that a module imports when it is loaded, not in its functions."""
    body = tree(path).body
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


def prints(path):
    """Return whether a module calls print."""
    called = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    return "print" in [function.id for function in called if isinstance(function, ast.Name)]


def test_no_module_prints():
    assert [named(path) for path in SOURCE if prints(path)] == []


def test_every_module_has_a_docstring():
    first = {path: (ast.get_docstring(tree(path)) or "").split("\n\n")[0] for path in SOURCE}
    assert [named(p) for p, text in first.items() if not text.strip().endswith((".", ":"))] == []


def test_no_module_has_a_vague_name():
    vague = {"utils", "util", "common", "misc", "helpers", "helper", "manager", "base", "core"}
    folders = [*MAY_IMPORT, "tests", "benchmarks"]
    names = {path.stem.removeprefix("test_") for f in folders for path in (ROOT / f).rglob("*.py")}
    assert not names & vague
