"""Structure of the source: boxes in their order, no import cycle, folders that can be read.

Imports count wherever they are: at the top of a module, within functions, for type checks.
"""

import ast
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "a2cap": {"a2cap", "pipeline", "extract", "model", "data"},
    "pipeline": {"pipeline", "extract", "model", "data"},
    "extract": {"extract", "data"},
    "model": {"model"},
    "data": {"data"},
}
"""Top-level folder -> the folders that its modules may import."""

ORDER = (
    ("a2cap",),
    ("pipeline/__main__",),
    ("pipeline/cli",),
    ("pipeline/demo", "pipeline/search"),
    ("pipeline/sweep",),
    ("pipeline/upkeep",),
    ("pipeline/experiment", "pipeline/runs"),
    ("pipeline/stages",),
    ("pipeline/configuration",),
    ("pipeline/config_fields",),
    ("pipeline/evaluation",),
    ("pipeline/analysis", "pipeline/serving"),
    ("pipeline/report",),
    ("pipeline/training/captioner", "pipeline/training/detector", "pipeline/training/encoder"),
    ("pipeline/captioning", "pipeline/extraction", "pipeline/training"),
    ("pipeline/metrics",),
    ("pipeline/runtime", "pipeline/weights"),
    ("pipeline/engine", "data/batches"),
    ("extract/extractor", "extract/trainable_encoder"),
    ("extract/grid", "extract/training"),
    ("extract/weights", "extract/detectron2_backend"),
    ("extract/detector", "extract/efficientnet_lite", "extract/image", "extract/extractor_record"),
    ("extract/extract_config",),
    ("model/adapting", "model/erasure", "model/self_critical", "model/scheduled_sampling"),
    ("model/losses",),
    ("model/captioners", "model/decoding", "model/faithfulness"),
    ("model/attention", "model/captioner"),
    ("model/alignment", "model/layers", "model/mixed_precision"),
    ("model/alignment_config",),
    ("data/captions", "data/detection", "data/features", "data/scenes"),
    ("data/annotations",),
    ("data/data_config", "data/sources", "data/captions/unicode_words"),
    ("data/identities",),
    ("data/image_ids",),
    ("data/files",),
    ("data", "extract", "model"),
)
"""Boxes from top to bottom: a box imports from boxes below it. docs/architecture.md draws them.

The last row has the single modules that import no box, such as data/errors.
"""

SOURCE = [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))]
MOST_MODULES = 15
MOST_IN_FUNCTIONS = 33
"""Imports inside functions: of optional packages, and in stages and SPICE, so that their
status and other metrics are quick."""
MOST_SINGLE = 25
"""Modules that one module of their own folder alone imports; lower it, do not raise it."""
EMPTY_NAMES = ("found", "one")
"""Names of variables that do not say what they hold."""


def box_of(module):
    """Return the most specific box that contains a module such as 'pipeline/engine/run'."""
    boxes = [box for row in ORDER for box in row if f"{module}/".startswith(f"{box}/")]
    return max(boxes, key=len, default=None)


def named(path):
    """Return a file's path in the checkout."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path):
    """Parse a module, once for all tests of its text."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path):
    """Return all nodes of a module's tree."""
    return list(ast.walk(tree(path)))


def row_of(box):
    return next(number for number, row in enumerate(ORDER) if box in row)


def unplaced(graph):
    """Return the modules that are in no box."""
    return sorted(module for module in graph if box_of(module) is None)


def upward_imports(graph):
    """Return the imports from a box into another one that is not below it."""
    upward = []
    for module, imported in graph.items():
        for other in imported:
            box, others = box_of(module), box_of(other)
            inside = box == others or row_of(box) == row_of(others) == len(ORDER) - 1
            if not inside and row_of(box) >= row_of(others):
                upward.append(f"{module} -> {other}")
    return sorted(upward)


def wrong_way_imports(graph):
    """Return the imports between top-level folders that MAY_IMPORT does not allow."""
    return sorted(
        f"{module} -> {other}"
        for module, imported in graph.items()
        for other in imported
        if other.split("/")[0] not in MAY_IMPORT[module.split("/")[0]]
    )


def cycle(graph):
    """Return one import cycle as a list that ends where it begins; an empty list without any."""
    done = set()

    def visit(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph.get(module, ())):
            circle = visit(other, [*path, module])
            if circle:
                return circle
        done.add(module)
        return []

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def crowded_folders(graph):
    """Return the folders with more than MOST_MODULES modules, `__init__` not counted."""
    folders = [module.rpartition("/")[0] for module in graph]
    return sorted({folder for folder in folders if folders.count(folder) > MOST_MODULES})


def imports_in_functions():
    """Return the imports inside functions, as module -> number."""
    counts = {}
    for path in SOURCE:
        functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
        inside = {
            node.lineno
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        if inside:
            counts[named(path)] = len(inside)
    return counts


def assignments(tree, name):
    """Return the lines that assign to a name: variables, parameters and loops."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        or (isinstance(node, ast.arg) and node.arg == name)
    ]


def single_importers(graph):
    """Return the modules that a single module imports, one of the same folder."""
    importers = {}
    for module, imported in graph.items():
        for other in imported:
            importers.setdefault(other, []).append(module)
    folder = {module: module.rpartition("/")[0] for module in graph}
    return sorted(
        module
        for module, users in importers.items()
        if len(users) == 1 and folder[users[0]] == folder[module]
    )


def modules():
    """Return module -> file of all source modules, packages left out."""
    return {named(path.with_suffix("")): path for path in SOURCE if path.name != "__init__.py"}


@cache
def imported_names(path):
    """Return the dotted names that a module imports, wherever in it."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write a2cap.…"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def import_graph():
    """Return module -> the source modules that it imports."""
    paths = modules()
    as_paths = {
        module: {
            place
            for name in imported_names(path)
            if name.startswith("a2cap.")
            for place in (name.replace(".", "/"), name.removeprefix("a2cap.").replace(".", "/"))
        }
        for module, path in paths.items()
    }
    return {module: names & paths.keys() for module, names in as_paths.items()}


def test_the_graph_covers_the_source():
    assert len(import_graph()) > 150
    assert "data/errors" in import_graph()["pipeline/cli/options"]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(unplaced, id="module outside a box"),
        pytest.param(upward_imports, id="import from a box that is not below"),
        pytest.param(wrong_way_imports, id="import of a folder that may not be imported"),
        pytest.param(cycle, id="import cycle"),
        pytest.param(crowded_folders, id="folder of too many modules"),
    ],
)
def test_the_source_has_no(faults):
    assert faults(import_graph()) == []


def test_few_imports_are_inside_functions():
    counts = imports_in_functions()
    assert sum(counts.values()) <= MOST_IN_FUNCTIONS, counts


@pytest.mark.parametrize("name", EMPTY_NAMES)
def test_variables_are_named_for_their_content(name):
    paths = [*SOURCE, *(p for f in ("benchmarks", "tests") for p in (ROOT / f).rglob("*.py"))]
    lines = {named(path): assignments(tree(path), name) for path in paths}
    empty = {module: at for module, at in lines.items() if at}
    assert empty == {}
    example = ast.parse(f"def f({name}):\n    {name} = [1 for {name} in x]\n    y.{name} = {name}")
    assert assignments(example, name) == [1, 2, 2]


def test_a_public_class_shares_its_name_with_no_class_or_alias():
    classes = Counter(n.name for p in SOURCE for n in nodes(p) if isinstance(n, ast.ClassDef))
    bodies = [node for path in SOURCE for node in tree(path).body if isinstance(node, ast.Assign)]
    # Type variables, which calls make, stand for any type.
    aliases = {ast.unparse(n.targets[0]) for n in bodies if not isinstance(n.value, ast.Call)}
    twice = {name for name, count in classes.items() if count > 1 or name in aliases}
    assert {name for name in twice if not name.startswith("_")} == set()


def test_few_modules_are_private_sections_of_another_one():
    modules_of_one = single_importers(import_graph())
    assert len(modules_of_one) <= MOST_SINGLE, modules_of_one
    graph = {
        "data/a": {"data/b", "data/c"},
        "data/d": {"data/c"},
        "data/b": set(),
        "x/e": {"data/d"},
    }
    assert single_importers({**graph, "data/c": set()}) == ["data/b"]


def test_every_box_of_the_order_exists():
    boxes = [box for row in ORDER for box in row]
    paths = [ROOT / box for box in boxes]
    assert [p for p in paths if not (p.is_dir() or p.with_suffix(".py").is_file())] == []


def test_an_import_against_the_order_is_found():
    upward = [
        *[(sorted(low)[0], sorted(high)[0]) for high, low in pairwise(ORDER[:-1])],
        ("pipeline/evaluation/evaluate_captioner", "pipeline/stages/evaluate"),
        ("pipeline/training/captioner/training_data", "pipeline/training/detector/labelled_images"),
        ("data/features/store", "data/batches/loader"),
    ]
    for module, other in upward:
        assert upward_imports({module: {other}, other: set()}) == [f"{module} -> {other}"]


FULL: dict[str, set[str]] = {f"data/m{number}": set() for number in range(MOST_MODULES)}
RING = {"data/a": {"data/b"}, "data/b": {"data/c"}, "data/c": {"data/a"}, "data/d": {"data/a"}}


@pytest.mark.parametrize(
    ("faults", "graph", "expected"),
    [
        (wrong_way_imports, {"model/losses": {"data/a"}}, ["model/losses -> data/a"]),
        (wrong_way_imports, {"extract/a": {"model/b"}}, ["extract/a -> model/b"]),
        (wrong_way_imports, {"data/a": {"extract/b"}}, ["data/a -> extract/b"]),
        (cycle, RING, ["data/a", "data/b", "data/c", "data/a"]),
        (crowded_folders, FULL, []),
        (crowded_folders, {**FULL, "data/one_more": set(), "model/config": set()}, ["data"]),
        (unplaced, {"pipeline/stray": set(), "pipeline/engine/run": set()}, ["pipeline/stray"]),
    ],
)
def test_a_fault_of_the_structure_is_found(faults, graph, expected):
    assert faults(graph) == expected


# --- imports of particular packages, headers and names of modules ---

MAY_IMPORT_OPENCV = {"data/scenes/drawing.py"}


def importers(package):
    """Return the modules that import a package."""
    return {named(path) for path in SOURCE if package in imported_names(path)}


def test_opencv_is_imported_only_by_the_extractor_and_the_drawing_of_scenes():
    users = importers("cv2")
    assert {name for name in users if not name.startswith("extract/")} == MAY_IMPORT_OPENCV


def test_only_the_command_line_imports_click():
    assert {"/".join(Path(name).parts[:2]) for name in importers("click")} == {"pipeline/cli"}


def test_every_module_has_a_docstring():
    first = {path: (ast.get_docstring(tree(path)) or "").split("\n\n")[0] for path in SOURCE}
    assert [named(p) for p, text in first.items() if not text.strip().endswith((".", ":"))] == []


def test_no_module_has_a_vague_name():
    vague = {"utils", "util", "common", "misc", "helpers", "helper", "manager", "base", "core"}
    folders = [*MAY_IMPORT, "tests", "benchmarks"]
    names = {path.stem.removeprefix("test_") for f in folders for path in (ROOT / f).rglob("*.py")}
    assert not names & vague
