"""A disk that becomes full in any stage ends it with one line, and costs nothing that was done.

Both ways: a limit on the size of files, and a small file system of its own.
"""

import re
import resource
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2cap.pipeline.doctor.clean import size_of

STAGES = ["calibrate", "extract", "preprocess", "train-xe", "evaluate"]
HALF_OF_A_FILE = {
    "calibrate": 700_000,
    "extract": 700_000,
    "preprocess": 20_000,
    "train-xe": 60_000,
    "evaluate": 30_000,
}
CHECK = "check the place and its free space, then run the command again"


@contextmanager
def file_size_limit(limit):
    """No file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    """A file system of a few bytes at a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._mount("size=4k")

    def resize(self, size: int) -> None:
        self._mount(f"remount,size={max(size, 4096)}")

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.place)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def small_disk():
    """Makes small disks, which are gone after the test; skips where nothing may be mounted."""
    made: list[SmallDisk] = []

    def make(place: Path) -> SmallDisk:
        try:
            made.append(SmallDisk(place))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a small file system needs the right to mount: {error}")
        return made[-1]

    yield make
    for disk in made:
        subprocess.run(["umount", "--lazy", str(disk.place)], check=True)


def size_of_result(experiment, stage):
    return size_of(experiment.directory(stage))


def refusals(place, reason):
    """What a stage may say on a full disk, each as a pattern for the whole line."""
    inside = rf"'{re.escape(str(place))}/[0-9a-f]{{12}}\.partial[^']*'"
    return (
        rf"a2: {reason}: {inside}; {CHECK}\n",
        rf"a2: cannot write {inside}: the disk is full( or fails)?; \d+ images are kept, "
        r"make room and run again to resume\n",
    )


def assert_refused(road, answer, reason):
    assert answer.exit_code == 1, answer.stdout
    patterns = refusals(road.artifacts / road.stage, reason)
    assert any(re.fullmatch(pattern, answer.stderr) for pattern in patterns), answer.stderr
    assert road.results == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_limit_on_the_size_of_files_ends_a_stage_with_one_line(road, stage):
    road = road(stage)
    for limit in (0, 3000, HALF_OF_A_FILE[stage]):
        with file_size_limit(limit):
            answer = road.run()
        assert_refused(road, answer, "File too large")
    assert road.ends_as_if_left_alone()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_ends_a_stage_with_one_line(road, stage, experiment, small_disk, monkeypatch):
    road = road(stage)
    (road.artifacts / stage).mkdir()
    needed = size_of_result(experiment, stage)
    disk = small_disk(road.artifacts / stage)
    with monkeypatch.context() as patch:
        # the disk becomes full after it was looked at
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1e12, 0, 1e12))
        for part in (0.02, 0.5, 0.95):
            disk.resize(int(part * needed))
            assert_refused(road, road.run(), "No space left on device")
    disk.resize(20 * needed)
    assert road.ends_as_if_left_alone()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            "extract",
            "disk too small for the features: at least 0.0 GB are needed, 0.0 GB are free; "
            "make room, or lower extract.min_regions",
        ),
        (
            "train-xe",
            "disk too small for checkpoints: 0.0 GB are needed, 0.0 GB are left by then; make room",
        ),
    ],
)
def test_a_disk_that_is_full_already_is_noticed_before_any_work(road, small_disk, stage, message):
    road = road(stage)
    (road.artifacts / stage).mkdir()
    small_disk(road.artifacts / stage)
    answer = road.run()
    assert (answer.exit_code, answer.stderr) == (1, f"a2: {message}\n")
    assert [path.suffix for path in (road.artifacts / stage).iterdir()] == []
