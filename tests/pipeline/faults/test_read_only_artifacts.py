"""Commands that only look need no right to write into the artifacts."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.experiment import Experiment
from tests.experiments import a2, data_overrides
from tests.pipeline.faults.mounts import read_only
from tests.users import nobody

COMMANDS = {
    "status": "train-xe     done",
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
