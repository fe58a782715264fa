"""What tests of single metrics share."""

import os

import pytest

from a2.pipeline.java import find_java


@pytest.fixture
def java_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pycocoevalcap's own classes need."""
    monkeypatch.setenv("PATH", f"{find_java().parent}{os.pathsep}{os.environ['PATH']}")
