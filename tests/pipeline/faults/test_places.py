"""Where things lie must not matter: odd paths, places that cannot be written, a clock set back."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.config import override
from a2cap.pipeline.engine.manifest import read_manifest

STAGES = ["calibrate", "extract", "preprocess", "train-xe", "evaluate"]
ODD = "zwei Wörter, 図 'und' \"mehr\" (1) #%&"
A_YEAR = 365 * 24 * 3600


def a2(*arguments):
    """Runs a command in this process; an error that it did not foresee fails the test."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def digests(artifacts):
    """Stage and key of every finished result, and the digest of what it holds."""
    found = (path.parent for path in artifacts.glob("*/*/manifest.json"))
    return {(path.parent.name, path.name): read_manifest(path).digest for path in found}


# --- spaces and letters of any kind -------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_road_runs_below_a_path_of_spaces_and_letters_of_any_kind(experiment, tmp_path):
    home = tmp_path / ODD
    scenes = shutil.copytree(experiment.scenes, home / "Bilder é")
    config = home / "mein Versuch.yaml"
    config.write_text(experiment.config_file.read_text())
    named = {
        "images": scenes / "images",
        "annotations": scenes / "dataset_coco.json",
        "instances": scenes / "instances.json",
    }
    place = ["-c", config, "--artifacts", home / "Ergebnisse ü"]
    for field, path in named.items():
        place += ["--set", override(f"data.{field}", path)]
    answer = a2("run", *place)
    assert answer.exit_code == 0, answer.stderr
    assert digests(home / "Ergebnisse ü") == digests(experiment.artifacts)
    again = a2("run", *place)
    assert "nothing to do: every result is there" in again.stdout
    assert a2("verify", "--data", home / "Ergebnisse ü").exit_code == 0
    [model] = (home / "Ergebnisse ü" / "train-xe").glob("*/model.safetensors")
    image = scenes / "images" / f"{1:012d}.jpg"
    boxes = ["--boxes", scenes / "instances.json"]
    said = a2("caption", image, "--model", model.parent, *boxes)
    assert (said.exit_code, said.stdout.startswith(f"{image}: ")) == (0, True), said.stderr


# --- places that cannot be written --------------------------------------------------------------


@contextmanager
def read_only(place: Path):
    """The folder cannot be written, not even by root, who may write whatever modes say."""
    options = ["bind", "remount,bind,ro"]
    try:
        for option in options:
            command = ["mount", "-o", option, str(place), str(place)]
            subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a read-only file system needs the right to mount: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_stage_whose_place_is_read_only_says_so_before_any_work(road, stage):
    road = road(stage)
    (road.artifacts / stage).mkdir()
    with read_only(road.artifacts / stage):
        answer = road.run()
    assert (answer.exit_code, answer.stderr) == (
        1,
        f"a2: cannot write in {str(road.artifacts / stage)!r} (Read-only file system); "
        "mend that, or name another place\n",
    )
    assert road.ends_as_if_left_alone()


def test_artifacts_that_are_read_only_are_named(road):
    road = road("calibrate")
    with read_only(road.artifacts):
        answer = road.run()
    assert answer.exit_code == 1
    assert answer.stderr.endswith(
        f"a2: cannot write in {str(road.artifacts)!r} (Read-only file system); "
        "mend that, or name another place\n"
    )


@pytest.mark.slow
def test_inputs_may_be_read_only(experiment, tmp_path):
    with read_only(experiment.scenes):
        place = ("-c", experiment.config_file, "--artifacts", tmp_path / "artifacts")
        answer = a2("run", "--until", "preprocess", *place)
    assert answer.exit_code == 0, answer.stderr
    made, expected = digests(tmp_path / "artifacts"), digests(experiment.artifacts)
    assert made == {key: value for key, value in expected.items() if key in made}
    assert len(made) == 3


# --- a clock that goes back ---------------------------------------------------------------------


@pytest.fixture
def a_year_ago(monkeypatch):
    """Sets the clock back, so that all that is on the disk was made in the future."""
    now = time.time

    def set_back():
        monkeypatch.setattr(time, "time", lambda: now() - A_YEAR)

    return set_back


class Died(BaseException):
    """Stands for the end of the process."""


def die(*arguments):
    raise Died


def test_a_clock_that_is_set_back_by_a_year_reruns_nothing(road, a_year_ago):
    road = road("evaluate")
    shutil.rmtree(road.artifacts / "train-xe")
    a_year_ago()
    place = ("-c", road.config_file, "--artifacts", road.artifacts)
    assert "nothing to do" in a2("run", "--until", "preprocess", *place).stdout
    rows = json.loads(a2("status", "--json", *place).stdout)
    assert [row["state"] for row in rows] == ["done", "done", "done", "to run", "waiting"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["extract", "train-xe"])
def test_work_that_began_before_the_clock_went_back_by_a_year_is_taken_up(
    road, stage, a_year_ago, monkeypatch
):
    road = road(stage)
    with monkeypatch.context() as patch:
        # what a run does last: so it dies after all of its commits and checkpoints
        patch.setattr("a2cap.pipeline.engine.run.write_skipped", die)
        with pytest.raises(Died):
            road.run()
    later = time.time() + A_YEAR
    for path in road.artifacts.rglob("*"):
        os.utime(path, (later, later))
    a_year_ago()
    assert road.ends_as_if_left_alone()
