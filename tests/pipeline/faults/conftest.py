"""The finished experiment, copied up to a stage, so that faults meet that stage alone."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.engine.manifest import read_manifest
from a2cap.pipeline.metrics import score as metrics

STAGES = ("calibrate", "extract", "preprocess", "train-xe", "evaluate")
COMMANDS = {"calibrate": "extract", "train-xe": "train"}


@dataclass(frozen=True)
class Road:
    """A configuration, and artifacts in which a stage and those after it are still to run."""

    config_file: Path
    artifacts: Path
    stage: str
    expected: str

    def run(self, *, meteor: bool = False) -> Result:
        """The stage's command; an error that it did not foresee fails the test.

        meteor: whether that is measured too, which takes seconds to start.
        """
        words = [COMMANDS.get(self.stage, self.stage), "-c", str(self.config_file)]
        words += ["--artifacts", str(self.artifacts)]
        with pytest.MonkeyPatch.context() as patch:
            if not meteor:
                patch.setattr(metrics, "_BY_JVM", {})
            return CliRunner().invoke(cli, words, catch_exceptions=False)

    @property
    def results(self) -> list[Path]:
        """Finished directories of the stage."""
        found = self.artifacts.glob(f"{self.stage}/*/manifest.json")
        return [path.parent for path in found if not path.parent.suffix]

    def ends_as_if_left_alone(self) -> bool:
        """Whether the command succeeds, and its result is that of an undisturbed run."""
        answer = self.run(meteor=True)
        assert answer.exit_code == 0, answer.stderr
        [result] = self.results
        return read_manifest(result).digest == self.expected


@pytest.fixture
def road(experiment, tmp_path):
    """Makes the road up to a stage."""

    def make(stage: str) -> Road:
        artifacts = tmp_path / "artifacts"
        before = STAGES[: STAGES.index(stage)]
        passing = shutil.ignore_patterns("*.lock", "*.holder.json", "hashes.sqlite*")
        for name in before:
            shutil.copytree(experiment.artifacts / name, artifacts / name, ignore=passing)
        artifacts.mkdir(exist_ok=True)
        return Road(
            experiment.config_file,
            artifacts,
            stage,
            read_manifest(experiment.directory(stage)).digest,
        )

    return make
