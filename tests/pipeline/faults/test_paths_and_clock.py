"""Unusual paths, read-only folders and a clock set back do not affect results."""

import json
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.experiment import Experiment
from tests.experiments import a2, data_overrides, settings
from tests.pipeline.faults.conftest import STAGES
from tests.pipeline.faults.mounts import read_only
from tests.users import nobody

UNUSUAL = "zwei Wörter, 図 'und' \"mehr\" (1) #%&"
A_YEAR = 365 * 24 * 3600


def digests(artifacts):
    """Return stage and key -> digest of every finished result."""
    folders = (path.parent for path in artifacts.glob("*/*/manifest.json"))
    return {(path.parent.name, path.name): read_manifest(path).digest for path in folders}


@pytest.mark.slow
def test_the_pipeline_runs_below_a_path_with_spaces_and_unicode(experiment, tmp_path):
    home = tmp_path / UNUSUAL
    scenes = shutil.copytree(experiment.scenes, home / "Bilder é")
    artifacts = home / "Ergebnisse ü"
    config = home / "mein Versuch.yaml"
    config.write_text(experiment.config_file.read_text())
    options = ["-c", config, "--artifacts", artifacts]
    options += settings(*data_overrides(scenes))
    a2("run", *options, code=0)
    assert digests(artifacts) == digests(experiment.artifacts)
    assert "nothing to do: " in a2("run", *options).stdout
    a2("verify", "--data", artifacts, code=0)
    [model] = (artifacts / "train-xe").glob("*/model.safetensors")
    image = scenes / "images" / f"{1:012d}.jpg"
    caption = a2(
        "caption", image, "--model", model.parent, "--boxes", scenes / "instances.json", code=0
    )
    assert caption.stdout.startswith(f"{image}: ")


def read_only_error(path):
    return (
        f"a2: cannot write in {str(path)!r} (Read-only file system); "
        "fix its permissions, or name another folder\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder_is_detected_before_any_work(unfinished, stage):
    unfinished = unfinished(stage)
    before = {*unfinished.artifacts.rglob("*"), unfinished.artifacts / "hashes.sqlite"}
    with read_only(unfinished.folder):
        answer = unfinished.run()
    assert (answer.exit_code, answer.stderr) == (1, read_only_error(unfinished.folder))
    assert before.issuperset(unfinished.artifacts.rglob("*"))


def test_read_only_artifacts_are_named(unfinished):
    unfinished = unfinished("extract")
    unfinished.folder.rmdir()
    with read_only(unfinished.artifacts):
        answer = unfinished.run()
    assert answer.exit_code == 1
    assert answer.stderr.endswith(read_only_error(unfinished.artifacts))


@pytest.mark.slow
def test_inputs_may_be_read_only(experiment, tmp_path):
    with read_only(experiment.scenes):
        options = ("-c", experiment.config_file, "--artifacts", tmp_path / "artifacts")
        answer = a2("run", "--until", "preprocess", *options)
    assert answer.exit_code == 0, answer.stderr
    made, expected = digests(tmp_path / "artifacts"), digests(experiment.artifacts)
    assert made == {key: value for key, value in expected.items() if key in made}
    assert len(made) == 2


@pytest.fixture
def set_clock_back(monkeypatch):
    """Return a function that sets the clock back a year, so that all files are in the future."""
    now = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: now() - A_YEAR)


class ProcessDied(BaseException):
    """Simulated end of the process."""


def die(*arguments, **options):
    raise ProcessDied


def test_a_clock_set_back_by_a_year_reruns_nothing(unfinished, set_clock_back):
    unfinished = unfinished("evaluate")
    shutil.rmtree(unfinished.artifacts / "train-xe")
    set_clock_back()
    options = ("-c", unfinished.config_file, "--artifacts", unfinished.artifacts)
    assert "nothing to do" in a2("run", "--until", "preprocess", *options).stdout
    rows = json.loads(a2("status", "--json", *options).stdout)
    assert [row["state"] for row in rows] == ["done", "done", "to run", "waiting"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["extract", "train-xe"])
def test_work_started_before_the_clock_was_set_back_is_resumed(
    unfinished, stage, set_clock_back, monkeypatch
):
    unfinished = unfinished(stage)
    with monkeypatch.context() as patch:
        # the last call of a run, so the process dies after all commits and checkpoints
        patch.setattr("a2cap.pipeline.engine.run.seal", die)
        with pytest.raises(ProcessDied):
            unfinished.run()
    later = time.time() + A_YEAR
    for path in unfinished.artifacts.rglob("*"):
        os.utime(path, (later, later))
    set_clock_back()
    assert unfinished.finishes_as_if_uninterrupted()


COMMANDS = {
    "status": "train-xe       done",
    "run": "nothing to do: every result exists",
    "doctor": "the result exists",
    "compare": "CIDEr",
    "runs": "1 run",
    "verify": "0 damaged",
    "clean": "nothing is removable",
}
"""Command -> what it prints."""


def words_of(command, copy):
    """Return the words of a command over the copied experiment."""
    if command == "compare":
        return [command, copy.directory("evaluate"), copy.directory("evaluate")]
    config = [] if command in ("runs", "verify") else ["-c", copy.experiment.config_file]
    return [command, *config, "--artifacts", copy.artifacts]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_only_looks_works_on_a_read_only_file_system(copy, command):
    with read_only(copy.artifacts):
        answer = a2(*words_of(command, copy))
    assert answer.exit_code == 0, answer.stderr
    assert COMMANDS[command] in answer.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_write_sees_the_states_and_reasons(experiment):
    with TemporaryDirectory() as folder:
        public = Path(folder)
        public.chmod(0o755)
        for name in ("scenes", "artifacts"):
            shutil.copytree(getattr(experiment, name), public / name)
        weights = shutil.copy(experiment.weights, public)
        overrides = [override("extract.weights", weights), *data_overrides(public / "scenes")]
        config = load_config(experiment.config_file, overrides)
        with nobody(), Experiment(config, public / "artifacts") as opened:
            assert {opened.status(name).state for name in opened.names} == {"done"}
            assert not any(opened.run(name).ran for name in opened.names)
