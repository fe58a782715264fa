"""Rendering: the same bytes from any number of processes, none of which survives a stop."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from a2cap.data.errors import A2Error
from a2cap.data.scenes import render
from a2cap.data.scenes.render import write_images
from a2cap.data.scenes.scene import make_scene
from tests.data.messages import message_of


def drawn(folder: Path, *, workers: int, count: int = 70) -> dict[str, bytes]:
    folder.mkdir()
    planted = [0.0, 1.0] * (count // 2)
    advanced: list[int] = []
    scenes = write_images(
        folder, planted, seed=3, side=96, workers=workers, progress=advanced.append
    )
    assert advanced == [1] * count
    assert scenes == [
        make_scene(index, seed=3, side=96, planted=share) for index, share in enumerate(planted)
    ]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_the_images_do_not_depend_on_the_number_of_processes(tmp_path):
    alone, two = (drawn(tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert len(alone) == 70 and alone == two


def test_few_images_are_drawn_by_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "get_context", None)
    (tmp_path / "images").mkdir()
    assert len(write_images(tmp_path / "images", [0.0] * 5, seed=0, side=96)) == 5


@pytest.mark.slow
def test_a_killed_process_is_an_error(tmp_path):
    def end_one(advanced: int) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in children:
            # a process can end between the listing and the signal
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    assert message_of(
        write_images,
        tmp_path,
        [0.0] * 2000,
        seed=0,
        side=96,
        workers=2,
        progress=end_one,
        error=A2Error,
    ) == ("a process that drew scenes was killed; free memory and run it again")


@pytest.mark.slow
def test_an_error_in_a_process_is_raised(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing/000000000001\.jpg"):
        write_images(tmp_path / "missing", [0.0] * 70, seed=0, side=96, workers=2)


SCRIPT = """
import sys
from pathlib import Path
from a2cap.data.scenes.generate import write_scenes
if __name__ == "__main__":
    report = lambda _: print("drawn", flush=True)
    write_scenes(Path(sys.argv[1]), count=20000, side=96, workers=2, progress=report)
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
    # Ctrl-C reaches the whole group, as from a terminal; SIGKILL only the first process
    (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
    _, complaints = running.communicate(timeout=600)
    if number == signal.SIGINT:
        assert complaints.count(b"Traceback") == 1, complaints
    ends = time.monotonic() + 600
    while (alive := in_session(running.pid)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert alive == []
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "out").iterdir()] == left


def in_session(leader: int) -> list[str]:
    """Return the processes of a session without zombies."""
    rows = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-s", str(leader)], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return [row for row in rows if row.split()[1][0] != "Z"]
