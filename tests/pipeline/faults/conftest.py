"""The finished experiment, copied up to a stage, so that a fault affects only that stage."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result

from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.metrics import metric_table
from tests.experiments import TRANSIENT, a2
from tests.pipeline.faults.mounts import SmallDisk

STAGES = ("extract", "preprocess", "train-xe", "evaluate")
COMMANDS = {"train-xe": "train"}


@dataclass(frozen=True)
class UnfinishedExperiment:
    """A configuration, and artifacts without the results of `stage` and of later stages."""

    config_file: Path
    artifacts: Path
    stage: str
    expected_digest: str

    def run(self, *, meteor: bool = False) -> Result:
        """Run the stage's command; meteor: compute that metric too, whose JVM starts slowly."""
        command = COMMANDS.get(self.stage, self.stage)
        with pytest.MonkeyPatch.context() as patch:
            if not meteor:
                patch.delitem(metric_table.FAMILIES, "METEOR")
            options = ("-c", self.config_file, "--artifacts", self.artifacts)
            answer: Result = a2(command, *options)
        return answer

    @property
    def folder(self) -> Path:
        """Folder of the stage's results."""
        return self.artifacts / self.stage

    @property
    def results(self) -> list[Path]:
        """Finished directories of the stage."""
        folders = (path.parent for path in self.folder.glob("*/manifest.json"))
        return [path for path in folders if not path.suffix]

    def finishes_as_if_uninterrupted(self) -> bool:
        """Run the command and return whether its result equals that of an uninterrupted run."""
        answer = self.run(meteor=True)
        assert answer.exit_code == 0, answer.stderr
        [result] = self.results
        return read_manifest(result).digest == self.expected_digest


@pytest.fixture
def unfinished(experiment, tmp_path):
    """Return a function that copies the experiment up to a stage."""

    def make(stage: str) -> UnfinishedExperiment:
        artifacts = tmp_path / "artifacts"
        for name in STAGES[: STAGES.index(stage)]:
            shutil.copytree(experiment.artifacts / name, artifacts / name, ignore=TRANSIENT)
        (artifacts / stage).mkdir(parents=True)
        digest = read_manifest(experiment.directory(stage)).digest
        return UnfinishedExperiment(experiment.config_file, artifacts, stage, digest)

    return make


@pytest.fixture
def small_disk(request):
    """Return a function that mounts small disks, which are unmounted after the test."""

    def make(path: Path) -> SmallDisk:
        disk = SmallDisk(path)
        request.addfinalizer(disk.unmount)
        return disk

    return make
