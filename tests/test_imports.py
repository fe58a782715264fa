"""The house's rules on imports and names, checked in the source itself."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "pipeline": {"pipeline", "extract", "model", "data"},
    "extract": {"extract", "data"},
    "model": {"model"},
    "data": {"data"},
}
"""Folder -> the folders of ours that its modules may import: one way only."""

MODULES = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))]

may_import_opencv = {"data/scenes/render.py", "data/scenes/drawing.py"}


def named(path):
    return path.relative_to(ROOT).as_posix()


def imported(path):
    """Full names of all that a module imports, also below functions and for type checks."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)} imports relatively; write a2cap.…"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_there_are_modules_to_check():
    assert len(MODULES) > 60


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_imports_go_one_way(path):
    folder = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("a2cap.")}
    assert ours <= MAY_IMPORT[folder]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_folders_are_imported_as_parts_of_a2cap(path):
    assert not {name.split(".")[0] for name in imported(path)} & {*MAY_IMPORT}


def test_opencv_is_imported_by_the_extractor_and_by_the_drawing_of_scenes_alone():
    importers = {named(path) for path in MODULES if "cv2" in imported(path)}
    assert {name for name in importers if not name.startswith("extract/")} == may_import_opencv


def test_heavy_packages_are_imported_where_they_are_used():
    at_help = {"torch", "cv2", "h5py", "lmdb", "numpy", "rich"}
    loaded = imported_at_load(ROOT / "pipeline" / "cli" / "main.py")
    assert not {name.split(".")[0] for name in loaded} & at_help


def imported_at_load(path):
    """What a module imports when it is loaded itself: not in functions, not for type checks."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    plain = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {name for node in plain for name in _names(node)}


def _names(node):
    return [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_prints(path):
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in calls


def test_only_the_command_line_imports_click():
    assert {named(path) for path in MODULES if "click" in imported(path)} == {
        "pipeline/cli/analyze.py",
        "pipeline/cli/caption.py",
        "pipeline/cli/main.py",
        "pipeline/cli/options.py",
        "pipeline/cli/compare.py",
        "pipeline/cli/convert.py",
        "pipeline/cli/detector.py",
        "pipeline/cli/output.py",
        "pipeline/cli/scenes.py",
        "pipeline/cli/maintenance.py",
        "pipeline/cli/weights.py",
    }


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_module_opens_with_what_it_is(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.split("\n\n")[0].strip().endswith((".", ":", "?"))


def test_every_module_is_named_for_what_it_holds():
    vague = {"utils", "util", "common", "misc", "helpers", "helper", "manager", "base", "core"}
    folders = [*MAY_IMPORT, "tests", "benchmarks"]
    names = {path.stem.removeprefix("test_") for f in folders for path in (ROOT / f).rglob("*.py")}
    assert not names & vague
