"""Settings of all tests: repeatable examples, one thread each, required markers.

With `A2_REQUIRE=chromium,spice` a test with one of these markers fails instead of being skipped. CI
sets it, so that a missing program cannot hide a failure.
"""

import atexit
import gc
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fsspec
import pytest
from hypothesis import settings

from a2cap.data.files import sealed_folder
from a2cap.data.files.cache import cache_folder
from a2cap.data.sources import location

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=10)
settings.load_profile("repeatable")

# A million imported objects live to the end: collections that skip them take a tenth of the time.
gc.disable()
atexit.register(gc.unfreeze)  # else libraries report their objects as leaks

REQUIRE = "A2_REQUIRE"


def required_markers():
    """Return the markers whose tests may not be skipped."""
    return {name.strip() for name in os.environ.get(REQUIRE, "").split(",") if name.strip()}


def require_one_checkout(root, packages):
    """Fail unless all packages are of this checkout; packages: the folder of each by name."""
    other = {name: str(path) for name, path in packages.items() if path.parent != root}
    if other:
        name, path = next(iter(other.items()))
        raise pytest.UsageError(
            f"the tests of {str(root)!r} would test {name!r} of {path!r}; "
            f"run pip install --editable {str(root)!r} in the environment of these tests"
        )


def pytest_configure(config):
    root = Path(__file__).parents[1]
    if (root / "pyproject.toml").is_file():
        names = ["a2cap", *(f"a2cap.{name}" for name in ("data", "extract", "model", "pipeline"))]
        require_one_checkout(
            root, {n: Path(import_module(n).__file__).resolve().parent for n in names}
        )
    known = {line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")}
    unknown = sorted(required_markers() - known)
    if unknown:
        raise pytest.UsageError(
            f"{REQUIRE} names an unknown marker: {unknown[0]!r}; see pyproject.toml"
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(10_000)  # hypothesis measures each collection, thousands with 700
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory, worker_id):
    """Return the user's cache folder; all tests share a temporary one instead."""
    users = cache_folder()
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "cache"
    os.environ["A2_CACHE"] = str(shared)
    # METEOR's table takes seconds to prepare, and never changes.
    (users / "meteor").mkdir(parents=True, exist_ok=True)
    shared.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (shared / "meteor").symlink_to(users / "meteor")
    return users


@pytest.fixture
def memory(monkeypatch):
    """Return fsspec's file system in memory, and permit its URLs."""
    permitted = (*location.PROTOCOLS, "memory")
    monkeypatch.setattr(location, "PROTOCOLS", permitted)
    return fsspec.filesystem("memory")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    named = [name for name in sorted(required_markers()) if item.get_closest_marker(name)]
    if report.skipped and named and not hasattr(report, "wasxfail"):
        *_, why = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE}={named[0]} allows no skip; {why}"
    return report


@pytest.fixture
def tolerant(monkeypatch):
    """Let up to ten items of a small set be bad, so that a test of reasons needs few good ones."""
    monkeypatch.setattr(sealed_folder, "LARGEST_SHARE", 1.0)
