"""2,000 damaged files of each kind are read or rejected: no traceback, no hang, no full memory."""

import json
import subprocess
import sys

import pytest

from tests.fuzz import TARGETS


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_rejected(name):
    command = [sys.executable, "-m", "tests.fuzz", name, "--count", "2000", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == 2000 and outcomes["refused"] > 100
