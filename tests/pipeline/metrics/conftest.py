"""What tests of single metrics share."""

import os
from pathlib import Path

import pytest

from a2cap.pipeline.metrics.java import find_java


@pytest.fixture
def java_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pycocoevalcap's own classes need."""
    monkeypatch.setenv("PATH", f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def models(users_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPICE's parser, as `a2 weights fetch spice` has brought it for the user."""
    fetched = users_cache / "weights" / "spice"
    if not fetched.is_dir():
        pytest.skip('SPICE has no parser; run "a2 weights fetch spice"')
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "spice").symlink_to(fetched)
    monkeypatch.setenv("A2_CACHE", str(tmp_path))
