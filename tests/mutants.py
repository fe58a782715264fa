"""Sampled mutants: how many single changes of the code make a test fail?

python -m tests.mutants --count 200 --seed 0

A mutant is one comparison, number, condition, operator or call, changed in a copy of the checkout.
The quick tests (with --slow, all) are collected once and recorded once: the lines that each
executes, and its seconds.
For a mutant the tests run that execute its line, and those named after its module, in a fork of the
collected tests in which the functions of the module are the changed ones. What runs at import (a
default, a class body) is changed in a fork that imports everything again. The file is changed too,
for programs that tests start. A test that fails alone without the mutant has killed nothing.

Drawn are lines that a quick test executes. Left out, as they state no behaviour: annotations,
decorators (`frozen`), docstrings, f-strings, logging, the texts of `raise`, `strict` of `zip`,
`stacklevel` and TYPE_CHECKING. Results are appended to .scratch/mutants; a stopped run continues.
"""

import ast
import gc
import hashlib
import inspect
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = "model pipeline/engine data/features pipeline/metrics data/sources pipeline/extraction"
TESTS = ["tests/model", "tests/data", "tests/pipeline", "tests/a2cap"]
OPTIONS = ["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "quick", "-m"]
FORK, CLEAN = multiprocessing.get_context("fork"), multiprocessing.get_context("forkserver")
RESULTS = "A2_MUTANTS"
"""Variable with the file of results, in the process that tests the copy."""
DOES_NOT_FIT = 77

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
    """One change of one file; span: its lines, of which a test has to execute one."""

    file: str
    line: int
    change: str
    source: str
    span: tuple[int, int]
    at_import: bool

    def __str__(self) -> str:
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


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed, in the order of the source."""
    match node:
        case ast.arg() | ast.Raise() | ast.JoinedStr() | ast.keyword(arg="strict" | "stacklevel"):
            return
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return
        case ast.Expr() if "logger." in ast.unparse(node):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from nodes_of(child)


def changes_of(source: str) -> list[tuple[int, ast.AST]]:
    """Return all changes of a file: the number of a node, and what takes its place."""
    nodes = enumerate(nodes_of(ast.parse(source)))
    return [(number, new) for number, node in nodes for new in changed_nodes(node)]


def mutant_of(file: str, source: str, number: int, new: ast.AST) -> Mutant:
    """Return a file with one change."""
    tree = ast.parse(source)
    node = list(nodes_of(tree))[number]
    before, after = (ast.unparse(n).splitlines()[0] for n in (node, new))
    line, place = getattr(node, "lineno", 0), place_of(tree, node)
    replace(tree, node, new)
    text = ast.unparse(ast.fix_missing_locations(tree))
    return Mutant(file, line, f"{before} -> {after}", text, *place)


def place_of(tree: ast.Module, node: ast.AST) -> tuple[tuple[int, int], bool]:
    """Return the lines that use a node, and True if it is executed at import."""
    around = [outer for outer in ast.walk(tree) if any(inner is node for inner in ast.walk(outer))]
    function = next((outer for outer in around if isinstance(outer, ast.FunctionDef)), None)
    if function is None:
        return (1, sys.maxsize), True
    if not any(inner is node for outer in function.body for inner in ast.walk(outer)):
        return (function.body[0].lineno, function.end_lineno or 0), True
    first = [outer.lineno for outer in around if isinstance(outer, ast.stmt)][-1]
    return (first, getattr(getattr(node, "test", node), "end_lineno", first)), False


def replace(tree: ast.Module, node: ast.AST, other: ast.AST) -> None:
    """Put another node in the place of one."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, other)
            elif isinstance(value, list):
                value[:] = [other if item is node else item for item in value]


def draw(folder: str, seed: int) -> Iterator[Mutant]:
    """Yield all mutants of a folder by chance."""
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    places = [(path, change) for path, source in sources.items() for change in changes_of(source)]
    for path, change in random.Random(seed).sample(places, len(places)):
        yield mutant_of(str(path.relative_to(ROOT)), sources[path], *change)


class Recorder:
    """A plugin that records the lines of each test; a shared fixture counts for all its users."""

    def __init__(self, items: list[pytest.Item]) -> None:
        files = [str(ROOT / folder / "*") for folder in FOLDERS.split()]
        self.coverage = coverage.Coverage(data_file=None, include=files, config_file=False)
        self.context, self.users = "", defaultdict[str, set[str]](set)
        for item in items:
            self.users[item.nodeid].add(item.nodeid)
            fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
            for fixture in (fixture for several in fixtures for fixture in several):
                self.users[f"{fixture.baseid} {fixture.argname}"].add(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self.context
        if fixturedef.scope != "function":
            self.switch(f"{fixturedef.baseid} {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.switch(before)

    def switch(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)

    def lines(self) -> dict[str, dict[int, list[str]]]:
        """Return the tests that execute each line of each file."""
        data = self.coverage.get_data()
        return {
            str(Path(file).relative_to(ROOT)): {
                line: sorted({test for context in contexts for test in self.users[context]})
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }


@dataclass
class Sampled:
    """A plugin that tries mutants on the collected tests."""

    results: Path
    folders: list[str]
    count: int
    seed: int
    marker: str

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.flaky, record = session, set[str](), self.results.with_suffix(".json")
        if not record.exists():
            wait(FORK, 7200, self.record, record)
        self.lines, self.seconds = json.loads(record.read_text())
        print(f"\n{len(self.seconds)} of {len(session.items)} tests passed", flush=True)
        known = self.results.read_text().splitlines() if self.results.exists() else []
        self.known = {row["mutant"]: row for row in map(json.loads, known)}
        table, all_ends = "| folder | tried | killed | not executed |\n|---|---|---|---|\n", []
        for number, folder in enumerate(self.folders):
            ends, unseen, mutants = list[str](), 0, draw(folder, self.seed)
            while len(ends) < (self.count + number) // len(self.folders):
                mutant = next(mutants)
                if tests := self.tests_of(mutant):
                    ends.append(self.end_of(mutant, tests))
                else:
                    unseen += 1
            table += f"| `{folder}` | {len(ends)} | {ends.count('killed')} | {unseen} |\n"
            all_ends += ends
        killed = all_ends.count("killed")
        print(f"\n{table}\n{killed} of {len(all_ends)} killed: {killed / len(all_ends):.1%}")
        session.testsfailed = int(killed < 0.95 * len(all_ends))
        return True

    def record(self, path: Path) -> None:
        """Run all tests once; write the lines of all, and the seconds of those that pass."""
        recorder, seconds, items = Recorder(self.session.items), {}, self.session.items
        self.session.config.pluginmanager.register(recorder)
        recorder.coverage.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            recorder.switch(item.nodeid)
            start = time.perf_counter()
            if not fails(self.session, item, following):
                seconds[item.nodeid] = round(time.perf_counter() - start, 3)
        recorder.coverage.stop()
        path.write_text(json.dumps([recorder.lines(), seconds]))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant: those named after its module, then by quickest file."""
        lines, (first, last) = self.lines.get(mutant.file, {}), mutant.span
        names = {
            test for line, some in lines.items() if first <= int(line) <= last for test in some
        }
        own = "tests/{}/test_{}::".format(*mutant.file.rsplit("/", 1))
        if names or mutant.at_import:
            names.update(test for test in self.seconds if test.startswith(own))
        files = defaultdict[str, float](float)
        for test in (names := (names & self.seconds.keys()) - self.flaky):
            files[file_of(test)] += self.seconds[test]

        def order(test: str) -> tuple[bool, float, str, float]:
            return not test.startswith(own), files[file_of(test)], file_of(test), self.seconds[test]

        return sorted(names, key=order)

    def end_of(self, mutant: Mutant, tests: list[str]) -> str:
        """Return how a mutant ends, and write it with the test that killed it."""
        if str(mutant) in self.known:
            return str(self.known[str(mutant)]["end"])
        killer, path, start = self.results.with_suffix(".killer"), ROOT / mutant.file, time.time()
        limit, original = 120 + 10 * sum(map(self.seconds.get, tests)), path.read_text()
        killer.write_text("")
        write(path, mutant.source)
        try:
            code = DOES_NOT_FIT
            if not mutant.at_import:
                code = wait(FORK, limit, self.run, tests, killer, mutant)
            if code == DOES_NOT_FIT:
                code = wait(CLEAN, limit, run_from_scratch, tests, killer, self.marker)
        finally:
            write(path, original)
        by = killer.read_text() or ("hung or ended" if code else "")
        if by in self.seconds and wait(FORK, limit, self.run, [by], killer, None):
            self.flaky.add(by)
            return self.end_of(mutant, self.tests_of(mutant))
        end, seconds = "killed" if code else "SURVIVED", round(time.time() - start, 1)
        row = {"end": end, "mutant": str(mutant), "by": by, "tests": len(tests), "seconds": seconds}
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*row.values(), flush=True)
        return end

    def run(self, tests: list[str], killer: Path, mutant: Mutant | None) -> None:
        """Run collected tests with the functions of a mutant."""
        be_silent()
        if mutant is not None and not take_functions_of(mutant):
            os._exit(DOES_NOT_FIT)
        items = {item.nodeid: item for item in self.session.items}
        os._exit(run_items(self.session, [items[test] for test in tests], killer))


@dataclass
class Chosen:
    """A plugin that runs chosen tests in their order, with all of their parameters."""

    tests: list[str]
    killer: Path

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        order = {test.partition("[")[0]: -number for number, test in enumerate(self.tests[::-1])}
        items = [item for item in session.items if item.nodeid.partition("[")[0] in order]
        items.sort(key=lambda item: order[item.nodeid.partition("[")[0]])
        run_items(session, items, self.killer)
        return True


def run_from_scratch(tests: list[str], killer: Path, marker: str) -> None:
    """Import the code and run tests."""
    be_silent()
    files = dict.fromkeys(map(file_of, tests))
    code = pytest.main([*OPTIONS, marker, *files], plugins=[Chosen(tests, killer)])
    os._exit(int(code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)))


def file_of(test: str) -> str:
    """Return the file of a test's id."""
    return test.partition("::")[0]


def run_items(session: pytest.Session, items: list[pytest.Item], killer: Path) -> int:
    """Run tests until one fails; return 1 and write its name if one does."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        if fails(session, item, following):
            killer.write_text(item.nodeid)
            return 1
    return 0


def fails(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test and return True if it fails."""
    before = session.testsfailed
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    return session.testsfailed > before


def be_silent() -> None:
    """Drop what tests print, and let one signal end all processes that they start."""
    os.setpgid(0, 0)
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)


def take_functions_of(mutant: Mutant) -> bool:
    """Give the functions of a module the code of its mutant; return False if one does not fit."""
    name = f"a2cap.{mutant.file.removesuffix('.py').replace('/', '.')}"
    old = defaultdict[str, dict[int, list[FunctionType]]](lambda: defaultdict(list))
    gc.unfreeze()  # what tests/conftest.py froze is not listed
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__module__ == name:
            old[function.__code__.co_qualname][function.__code__.co_firstlineno].append(function)
    new = defaultdict[str, list[CodeType]](list)
    for code in codes_in(compile(mutant.source, str(ROOT / mutant.file), "exec")):
        new[code.co_qualname].append(code)
    for qualname, codes in new.items():
        if len(codes) != len(old[qualname]):
            return False
        for code, line in zip(codes, sorted(old[qualname]), strict=True):
            for function in old[qualname][line]:
                if function.__code__.co_freevars != code.co_freevars:
                    return False
                function.__code__ = code
    return True


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module and of its classes, in the order of the source."""
    for const in code.co_consts:
        if isinstance(const, CodeType) and not const.co_name.endswith(("comp>", "expr>")):
            yield from [const] if const.co_flags & inspect.CO_NEWLOCALS else codes_in(const)


def wait(context: Any, seconds: float, function: Callable[..., None], *arguments: object) -> int:
    """Return the exit code of a function in another process, or minus the signal that ended it."""
    process = context.Process(target=function, args=arguments)
    process.start()
    try:
        process.join(seconds)
    finally:
        process.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return int(process.exitcode)


def write(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode: two changes within a second have the same time."""
    path.write_text(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def copy_checkout(folder: Path, *given: object) -> str:
    """Copy the files that are or could be committed; return the digest of code and arguments."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    digest = hashlib.sha256(repr(given).encode())
    for name in sorted(filter(None, names.split("\0"))):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
            digest.update((ROOT / name).read_bytes() if name.endswith(".py") else b"")
    for name in ("configs", "data", "extract", "model", "pipeline"):
        (folder / "a2cap" / name).symlink_to(f"../{name}")
    return digest.hexdigest()[:12]


def main() -> int:
    """Print a table of tried, killed and surviving mutants; return 1 if under 95 % are killed."""
    parser = ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", action="store_true", help="run slow tests too")
    parser.add_argument("--folder", choices=FOLDERS.split(), action="append")
    parser.add_argument("tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    if RESULTS in os.environ:
        CLEAN.set_forkserver_preload(["numpy", "torch", "torchvision"])
        file, folders = Path(os.environ[RESULTS]), given.folder or FOLDERS.split()
        plugin = Sampled(file, folders, given.count, given.seed, "" if given.slow else "not slow")
        return int(pytest.main([*OPTIONS, plugin.marker, *given.tests], plugins=[plugin]))
    with tempfile.TemporaryDirectory() as copy:
        digest = copy_checkout(Path(copy), given.tests, given.seed, given.slow)
        results = ROOT / ".scratch/mutants" / f"{digest}.jsonl"
        results.parent.mkdir(parents=True, exist_ok=True)
        print(f"results are appended to {str(results)!r}", flush=True)
        environment = {**os.environ, "PYTHONPATH": copy, RESULTS: str(results)}
        command = [sys.executable, "-m", "tests.mutants", *sys.argv[1:]]
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
