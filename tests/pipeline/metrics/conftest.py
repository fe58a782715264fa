"""Fixtures of the tests of single metrics."""

import os
from pathlib import Path

import pytest

from a2cap.pipeline.runtime.java import JavaError, find_java


@pytest.fixture
def java_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put java on PATH for pycocoevalcap's own classes."""
    try:
        find_java()
    except JavaError as error:
        pytest.skip(f"no oracle: {error}")
    monkeypatch.setenv("PATH", f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def models(users_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Provide SPICE's parser from the user's cache."""
    fetched = users_cache / "weights" / "spice"
    if not fetched.is_dir():
        pytest.skip('SPICE has no parser; run "a2 weights fetch spice"')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "spice").symlink_to(fetched)
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
