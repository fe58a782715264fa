"""2,000 damaged files of each kind are read or rejected: no traceback, no hang, no full memory."""

import json
import multiprocessing
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tests.fuzz import TARGETS, main


def fuzz(words, log):
    """Run the fuzzer in this process, which gets its limits; exit with its code."""
    with log.open("w") as output, redirect_stdout(output), redirect_stderr(output):
        sys.exit(main(words))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_rejected(name, tmp_path):
    log = tmp_path / "log"
    words = [name, "--count", "2000", "--seed", "0"]
    child = multiprocessing.get_context("fork").Process(target=fuzz, args=(words, log))
    child.start()
    child.join(600)
    child.kill()
    assert child.exitcode == 0, log.read_text()
    outcomes = json.loads(log.read_text())
    assert sum(outcomes.values()) == 2000 and outcomes["refused"] > 100
