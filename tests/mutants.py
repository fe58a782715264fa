"""Sampled mutants: how many single changes of the code make a test of its own folder fail.

python -m tests.mutants --count 200 --seed 0

Each mutant is one comparison, number, condition, operator or call, changed in a copy of the
checkout. The tests of its folder run on it, those of its own module first, then those that import
it, the slow ones last, until one fails. They run in forks of a process that has imported torch.
"""

import ast
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
TESTS = {
    "model": ["tests/model"],
    "pipeline/engine": ["tests/pipeline/engine"],
    "data/features": ["tests/data/features"],
    "pipeline/metrics": ["tests/pipeline/metrics"],
    "data/sources": ["tests/data/sources", "tests/data/annotations"],
    "pipeline/extraction": ["tests/pipeline/extraction"],
}
"""Folders of code, and the tests that have to fail."""
SECONDS = 900
"""After which a mutant that hangs counts as killed."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot},
    **{ast.IsNot: ast.Is},
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    change: str
    source: str

    def __str__(self) -> str:
        """Name the place and the change."""
        return f"{self.file}:{self.line}: {self.change}"


def changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the changed forms of one node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed = deepcopy(node)
            changed.ops = [COMPARISONS[type(op)]()]
            yield changed
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield ast.BoolOp(other, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.If(body=body, orelse=orelse):
            for condition in (True, False):
                yield ast.If(ast.Constant(condition), body, orelse)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def is_left_out(node: ast.AST) -> bool:
    """Return True for nodes that state no behaviour: annotations, messages, logs, raises."""
    return isinstance(node, ast.arg | ast.Raise | ast.JoinedStr) or (
        isinstance(node, ast.Expr) and "logger." in ast.unparse(node)
    )


def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that may be changed, in the order of the source."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if is_left_out(node):
            return
        found.append(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child)

    visit(tree)
    return found


def changes_of(source: str) -> list[tuple[int, ast.AST]]:
    """Return all changes of a file: the number of a node, and what takes its place."""
    nodes = nodes_of(ast.parse(source))
    return [(number, new) for number, node in enumerate(nodes) for new in changed_nodes(node)]


def mutant_of(file: str, source: str, number: int, new: ast.AST) -> Mutant:
    """Return a file with one change."""
    tree = ast.parse(source)
    node = nodes_of(tree)[number]
    line = getattr(node, "lineno", 0)
    before, after = (ast.unparse(one).splitlines()[0] for one in (node, new))
    replace(tree, node, new)
    text = ast.unparse(ast.fix_missing_locations(tree))
    return Mutant(file, line, f"{before} -> {after}", text)


def replace(tree: ast.Module, node: ast.AST, other: ast.AST) -> None:
    """Put another node in the place of one."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, other)
            elif isinstance(value, list):
                value[:] = [other if one is node else one for one in value]


def sample(folder: str, count: int, generator: random.Random) -> list[Mutant]:
    """Return mutants of a folder, each file in proportion to its possible changes."""
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    places = [(path, change) for path, source in sources.items() for change in changes_of(source)]
    drawn = generator.sample(places, min(count, len(places)))
    return [
        mutant_of(str(path.relative_to(ROOT)), sources[path], *change) for path, change in drawn
    ]


def copy_checkout(folder: Path) -> Path:
    """Copy the tracked files, with links by which they are imported."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def is_killed(checkout: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Return True if a test fails with the mutant, which is taken back."""
    original = (checkout / mutant.file).read_text()
    write(checkout / mutant.file, mutant.source)
    try:
        return any(fails(checkout, chosen) for chosen in selections(checkout, mutant.file, tests))
    finally:
        write(checkout / mutant.file, original)


def write(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode: that of two changes within a second looks alike."""
    path.write_text(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def selections(checkout: Path, file: str, tests: list[str]) -> Iterator[list[str]]:
    """Yield the tests of the module, those that import it, the other quick ones, the slow ones."""
    folder, _, name = file.rpartition("/")
    own = f"tests/{folder}/test_{name}"
    if (checkout / own).exists():
        yield [own, "-m", "not slow"]
    module = re.compile(rf"\ba2cap\.{file.removesuffix('.py').replace('/', '[.]')}\b")
    files = [path for folder in tests for path in sorted((checkout / folder).rglob("test_*.py"))]
    names = [str(path.relative_to(checkout)) for path in files if module.search(path.read_text())]
    if others := [name for name in names if name != own]:
        yield [*others, "-m", "not slow"]
    yield [*tests, *(f"--ignore={name}" for name in {own, *names}), "-m", "not slow"]
    yield [*tests, "-m", "slow"]


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["numpy", "torch", "torchvision"])


def fails(checkout: Path, chosen: list[str]) -> bool:
    """Return True if a chosen test fails, or the tests do not end."""
    process = FORKS.Process(target=run_tests, args=(checkout, chosen))
    process.start()
    process.join(SECONDS)
    process.kill()
    process.join()
    return process.exitcode not in (0, 5)  # 5: no test was chosen


def run_tests(checkout: Path, chosen: list[str]) -> None:
    """Run tests of a checkout and end this process with pytest's code."""
    # the copy is imported by its links, before the working directory and any installed package
    paths = [str(checkout / ".typing"), str(checkout)]
    sys.path[:] = paths + [path for path in sys.path if path and Path(path) != ROOT]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "a2cap")]:
        del sys.modules[name]
    os.environ["PYTHONPATH"] = paths[0]
    sys.dont_write_bytecode = False  # else each fork would compile all modules and tests
    os.chdir(checkout)
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    import pytest

    options = ["-x", "-q", "-n", "0", "-o", "pythonpath=.typing ."]
    sys.exit(int(pytest.main([*options, *chosen])))


def run(folder: str, mutants: list[Mutant], checkouts: SimpleQueue[Path]) -> list[Mutant]:
    """Try the mutants of a folder; return those that no test killed."""

    def survives(mutant: Mutant) -> bool:
        checkout = checkouts.get()
        try:
            killed = is_killed(checkout, mutant, TESTS[folder])
        finally:
            checkouts.put(checkout)
        print("killed  " if killed else "SURVIVED", mutant, flush=True)
        return not killed

    with ThreadPoolExecutor(checkouts.qsize()) as pool:
        left = list(pool.map(survives, mutants))
    return [mutant for mutant, is_left in zip(mutants, left, strict=True) if is_left]


def main() -> int:
    """Print a table of tried, killed and surviving mutants; return 1 if under 95 % are killed."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", choices=TESTS, action="append")
    arguments = parser.parse_args()
    folders = arguments.folder or list(TESTS)
    generator = random.Random(arguments.seed)
    checkouts: SimpleQueue[Path] = SimpleQueue()
    rows, tried, left = [], 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.jobs):
            checkouts.put(copy_checkout(Path(temporary) / f"checkout-{number}"))
        for number, folder in enumerate(folders):
            share = (arguments.count + number) // len(folders)
            mutants = sample(folder, share, generator)
            if fails(Path(temporary) / "checkout-0", [*TESTS[folder], "-m", "not slow"]):
                print(f"the tests of {folder} fail without a mutant; mend them first")
                return 1
            survivors = run(folder, mutants, checkouts)
            rows.append(f"| `{folder}` | {len(mutants)} | {len(mutants) - len(survivors)} |")
            tried, left = tried + len(mutants), left + len(survivors)
    print("", "| folder | tried | killed |", "|---|---|---|", *rows, sep="\n")
    print(f"\n{tried - left} of {tried} killed: {(tried - left) / max(1, tried):.1%}")
    return int(tried - left < 0.95 * tried)


if __name__ == "__main__":
    sys.exit(main())
