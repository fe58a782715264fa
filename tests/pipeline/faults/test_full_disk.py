"""A disk that becomes full during a stage ends it with one line and costs no finished work.

Tested in two ways: a limit on file sizes, and a small file system.
"""

import re
import shutil

import pytest

from tests.file_sizes import limited_to
from tests.pipeline.faults.conftest import STAGES

HALF_OF_A_FILE = {"extract": 700_000, "preprocess": 20_000, "train-xe": 60_000, "evaluate": 30_000}
REMEDY = "free disk space, then run the command again"


def assert_one_line_error(unfinished, reason):
    """Run the stage and check its exit code, its message and that it left no result."""
    answer = unfinished.run()
    assert answer.exit_code == 1, answer.stdout
    inside = rf"'{re.escape(str(unfinished.folder))}/[0-9a-f]{{12}}\.partial[^']*'"
    patterns = (
        rf"a2: {reason}: {inside}; {REMEDY}\n",
        rf"a2: cannot write {inside}: the (disk is full|disk is full or fails|limit on file sizes "
        r"is reached); "
        r"\d+ images are kept, free disk space and run again to resume\n",
    )
    assert any(re.fullmatch(pattern, answer.stderr) for pattern in patterns), answer.stderr
    assert unfinished.results == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_file_size_limit_ends_a_stage_with_one_line(unfinished, stage):
    unfinished = unfinished(stage)
    for limit in (0, 3000, HALF_OF_A_FILE[stage]):
        with limited_to(limit):
            assert_one_line_error(unfinished, "File too large")
    assert unfinished.finishes_as_if_uninterrupted()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_ends_a_stage_with_one_line(
    unfinished, stage, experiment, small_disk, monkeypatch
):
    unfinished = unfinished(stage)
    files = [path for path in experiment.directory(stage).rglob("*") if path.is_file()]
    needed = sum(path.stat().st_size for path in files)
    disk = small_disk(unfinished.folder)
    with monkeypatch.context() as patch:
        # the disk becomes full after the check
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1e12, 0, 1e12))
        for part in (0.02, 0.5, 0.95):
            disk.resize(int(part * needed))
            assert_one_line_error(unfinished, "No space left on device")
    disk.resize(20 * needed)
    assert unfinished.finishes_as_if_uninterrupted()
