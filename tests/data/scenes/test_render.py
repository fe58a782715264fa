import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from a2cap.data.errors import A2Error
from a2cap.data.scenes import render as scene_images
from a2cap.data.scenes.render import write_images
from a2cap.data.scenes.scene import make_scene


def drawn(folder: Path, *, workers: int, count: int = 70) -> dict[str, bytes]:
    folder.mkdir()
    planted = [0.0, 1.0] * (count // 2)
    told: list[int] = []
    scenes = write_images(folder, planted, seed=3, side=96, workers=workers, progress=told.append)
    assert told == [1] * count
    assert scenes == [
        make_scene(index, seed=3, side=96, planted=share) for index, share in enumerate(planted)
    ]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_images_are_the_same_bytes_however_many_processes_draw(tmp_path):
    alone, two = (drawn(tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert len(alone) == 70 and alone == two


def test_few_images_are_drawn_by_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(scene_images, "ProcessPoolExecutor", None)
    (tmp_path / "images").mkdir()
    assert len(write_images(tmp_path / "images", [0.0] * 5, seed=0, side=96)) == 5


def test_a_process_that_is_ended_from_outside_is_an_error(tmp_path):
    def end_one(advanced: int) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in children:
            # one that is gone between the list and the signal has been ended before
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    with pytest.raises(A2Error) as error:
        write_images(tmp_path, [0.0] * 2000, seed=0, side=96, workers=2, progress=end_one)
    assert str(error.value) == (
        "a process that drew scenes was ended from outside; free memory and run it again"
    )


SCRIPT = """
import sys
from pathlib import Path
from a2cap.data.scenes.generate import write_scenes
if __name__ == "__main__":
    say = lambda _: print("drawn", flush=True)
    write_scenes(Path(sys.argv[1]), count=20000, side=96, workers=2, progress=say)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGINT, []), (signal.SIGKILL, [".scenes.partial"])]
)
def test_a_stop_leaves_no_process_behind_and_ctrl_c_no_folder(tmp_path, number, left):
    (tmp_path / "draw.py").write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, tmp_path / "draw.py", tmp_path / "out" / "scenes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None and running.stdout.readline() == b"drawn\n"
    # to the whole group, as a terminal does; what cannot be caught only to the first process
    (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
    _, complaints = running.communicate(timeout=30)
    if number == signal.SIGINT:
        assert complaints.count(b"Traceback") == 1, complaints
    ends = time.monotonic() + 15
    while (alive := in_session(running.pid)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert alive == []
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "out").iterdir()] == left


def in_session(leader: int) -> list[str]:
    """Processes of the session, zombies left out."""
    rows = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-s", str(leader)], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [row for row in rows if row.split()[1][0] != "Z"]
