"""Command `a2 scenes`: its files and output, reruns, and interruptions."""

import inspect
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.cli.data.scenes import scenes
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.engine.lock import read_lock
from tests.experiments import a2

ROOT = Path(__file__).parents[4]


def contents(folder):
    """Map each file below the folder to its bytes and its modification time."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in files
    }


def output_for_three(folder):
    return (
        f"{folder}: 3 images (images), 15 captions (dataset_coco.json, captions.json), "
        "boxes and attributes (instances.json), objects of each word (grounding.json)\n"
        "use: a2 run -c configs/smoke.yaml "
        f"--set 'data.images=\"{folder}/images\"' "
        f"--set 'data.annotations=\"{folder}/dataset_coco.json\"'\n"
    )


def test_scenes_are_written_once_with_the_command_to_use_them(tmp_path):
    folder = tmp_path / "my scenes"
    answer = a2("scenes", folder, "--count", 3, code=0)
    assert answer.stderr == ""
    assert answer.stdout == output_for_three(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("captions.json", "dataset_coco.json", "grounding.json", "images"),
        *("instances.json", "scenes.json", "words.json"),
    ]
    assert len(list((folder / "images").iterdir())) == 3
    before = contents(folder)
    answer = a2("scenes", folder, "--count", 3, code=0)
    assert answer.stderr == ""
    assert answer.stdout == (
        f"nothing to do: {str(folder)!r} already contains these scenes\n{output_for_three(folder)}"
    )
    assert contents(folder) == before


def test_the_printed_command_reads_scenes_from_a_path_with_spaces(tmp_path):
    folder = tmp_path / "it's mine, ünd #1"
    use = a2("scenes", folder, "--count", 1).stdout.splitlines()[-1]
    above = click.Context(cli, **cli.context_settings)
    _, command, words = cli.resolve_command(above, shlex.split(use.removeprefix("use: a2 ")))
    options = command.make_context("run", words, parent=above).params
    data = load_config(ROOT / options["config_file"], options["overrides"]).data
    assert (data.images, data.annotations) == (folder / "images", folder / "dataset_coco.json")
    assert data.images.is_dir() and data.annotations.is_file()


def test_the_options_have_the_defaults_of_write_scenes():
    parameters = inspect.signature(write_scenes).parameters
    defaults = {option.name: option.default for option in scenes.params}
    for name in ("seed", "side", "spurious"):
        assert defaults[name] == parameters[name].default


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--count", 0), 1, "a2: number of scenes is 0; give at least 1"),
        ((), 2, "Error: Missing option '--count'."),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(tmp_path, options, code, message):
    answer = a2("scenes", tmp_path / "scenes", *options, code=code)
    assert answer.stderr.splitlines()[-1] == message
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_runs_are_deleted_and_those_of_running_ones_kept(tmp_path):
    killed, running, other = (
        tmp_path / name
        for name in (".my scenes.partial-1", ".my scenes.partial-2", ".others.partial-1")
    )
    for folder in (killed, running, other):
        (folder / "images").mkdir(parents=True)
    with read_lock(running):
        a2("scenes", tmp_path / "my scenes", "--count", 1, code=0)
    assert sorted(tmp_path.iterdir()) == sorted([running, other, tmp_path / "my scenes"])


STOPPING = """
import os, signal
from a2cap.pipeline.cli.main import main
from a2cap.pipeline.engine.progress import TrackedWork

def stop(tracked, _):
    os.kill(os.getpid(), signal.{signal})

TrackedWork.advance = stop
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_leaves_no_files_and_says_that_the_command_restarts(tmp_path, how, code):
    stopped = subprocess.run(
        [
            *(sys.executable, "-c", STOPPING.format(signal=how.name)),
            *("scenes", tmp_path / "my scenes", "--count", "20000"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (stopped.returncode, stopped.stdout) == (code, ""), stopped.stderr
    assert stopped.stderr == "a2: stopped; run the same command again to restart\n"
    assert list(tmp_path.iterdir()) == []
