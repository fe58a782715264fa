"""Preflight checks: report everything that keeps stages from running, before a model is loaded."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.annotations.instances import read_instances
from a2cap.data.annotations.layouts import require_annotations
from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.annotations.word_groups import read_word_groups
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.paths import require_file
from a2cap.data.scenes.truth import read_scenes
from a2cap.data.sources.opening import require_image_folder
from a2cap.pipeline.captioning.ensemble import require_compatible, require_vocabulary
from a2cap.pipeline.doctor.resources import Resources, UnknownRequirement
from a2cap.pipeline.engine.artifacts import (
    EVALUATE,
    EXTRACT,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.evaluation.scores import read_baseline
from a2cap.pipeline.metrics.java import find_java, run_java
from a2cap.pipeline.metrics.meteor import HEAP
from a2cap.pipeline.metrics.tokenization import require_metric_files
from a2cap.pipeline.stages.preprocess import require_usable
from a2cap.pipeline.training.detector.data import image_files, input_files
from a2cap.pipeline.weights.captioners import captioner_folder
from a2cap.pipeline.weights.detectors import settings_of_weights, weights_file

if TYPE_CHECKING:
    from a2cap.pipeline.config import Config
    from a2cap.pipeline.experiment import Experiment


@dataclass(frozen=True)
class Check:
    """A checked requirement of a stage.

    state: "ok", "problem", or "unknown" if another problem has to be fixed first.
    found: what was found, or the text of the problem, which ends in its remedy.
    """

    stage: str
    need: str
    state: str
    found: str
    problem: A2Error | None = None


@dataclass(frozen=True)
class PlannedRun:
    """The stages that are about to run.

    force: run them although their results exist; output: path of the result, if it is not in the
    artifacts folder.
    """

    experiment: "Experiment"
    names: Sequence[str]
    force: bool = False
    output: Path | None = None
    _states: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> "Config":
        """Configuration of the experiment."""
        return self.experiment.config

    @cached_property
    def resources(self) -> Resources:
        """Disk space and memory of the stages."""
        return Resources(self.experiment, output=self.output)

    def is_pending(self, stage: str) -> bool:
        """Return True if the stage has to run, or if that is not known yet."""
        if self.force:
            return True
        if self.output is not None:
            return not self.output.exists()
        if not any((self.experiment.artifacts / stage).glob("*/")):
            return True  # known without the digests of all images, which can take minutes
        if stage not in self._states:
            try:
                self._states[stage] = self.experiment.status(stage).state
            except A2Error:
                self._states[stage] = "unknown"
        return self._states[stage] != "done"


def require_runnable(
    experiment: "Experiment",
    names: Sequence[str],
    *,
    force: bool = False,
    output: Path | None = None,
) -> None:
    """Raise everything that keeps the named stages from running as one error.

    A single problem is raised as it is. Several are one ConfigError if all are ConfigErrors, else
    one A2Error.
    """
    checks = run_checks(PlannedRun(experiment, names, force=force, output=output))
    # keyed by text, because several stages have the same problem
    problems = {str(check.problem): check.problem for check in checks if check.problem}
    if len(problems) == 1:
        raise next(iter(problems.values()))
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        text = f"{len(problems)} problems, nothing was started:{lines}"
        all_config = all(isinstance(problem, ConfigError) for problem in problems.values())
        raise ConfigError(text) if all_config else A2Error(text)


def run_checks(run: PlannedRun) -> list[Check]:
    """Check every requirement of every stage, in the order in which the stages run."""
    imports = run.config.data.features is not None
    return [
        _check(run, stage, need, look)
        for stage in run.names
        for need, look in (_IMPORT if imports and stage == EXTRACT else _NEEDS[stage]).items()
    ]


def _check(run: PlannedRun, stage: str, need: str, look: "_Look") -> Check:
    if need in _OF_WORK and not run.is_pending(stage):
        return Check(stage, need, "ok", "the result exists")
    try:
        return Check(stage, need, "ok", look(run, stage))
    except UnknownRequirement as error:
        return Check(stage, need, "unknown", str(error))
    except A2Error as error:
        return Check(stage, need, "problem", str(error), error)
    except OSError as error:
        problem = f"{error.strerror}: {str(error.filename)!r}; check the path and its permissions"
        return Check(stage, need, "problem", problem, InputError(problem))


def _images(run: PlannedRun, stage: str) -> str:
    """Check that the folder exists and that no more images are missing than may be skipped."""
    if run.config.data.features is not None and run.config.data.images is None:
        return "none: the report shows no images"
    images = run.experiment.images
    # a wrong folder deserves another message than eleven bad images of one that is right
    missing = [name for name in sorted(images) if images[name] is None]
    if len(missing) == len(images):
        folder = str(require_image_folder(run.config.data.images))
        raise InputError(
            f"none of the {len(images):,} images has a file in {folder!r}; check data.images"
        )
    skipped = [SkippedItem(name, "image file not found") for name in missing]
    check_skip_limit(skipped, len(images), "images")
    return f"{len(images):,}, {len(missing):,} of them missing"


def _features(run: PlannedRun, stage: str) -> str:
    """Check that the features of `data.features` can be read."""
    return f"{run.config.data.features}, feature width {run.resources.feature_width:,}"


def _weights(run: PlannedRun, stage: str) -> str:
    """Check that detector weights are named, readable, and not contradicted by the settings."""
    path = weights_file(run.config.extract)
    stated = settings_of_weights(run.config.extract.weights)
    if conflict := run.config.extract.conflict(stated):
        raise ConfigError(conflict)
    return f"{path}, feature width {run.resources.feature_width:,}"


def _boxes(run: PlannedRun, stage: str) -> str:
    """Check that every image has boxes, if they are given."""
    boxes = run.config.extract.boxes
    return f"{run.resources.given_regions:,} given" if boxes == "given" else boxes


def _annotations(run: PlannedRun, stage: str) -> str:
    """Check that the captions can be read, that each split has images, and the limit of skips."""
    data = run.config.data
    path = require_annotations(data.annotations)
    if data.split_list is not None and not data.split_list.is_dir():
        require_file(data.split_list, "data.split_list")
    found = run.experiment.annotations
    unusable = require_usable(found, path)
    return f"{len(found.images):,} images, {len(unusable):,} items skipped"


def _baseline(run: PlannedRun, stage: str) -> str:
    """Check that the metrics to compare with can be read."""
    baseline = run.config.evaluate.baseline
    if baseline is None:
        return "none"
    metrics = read_baseline(require_file(baseline, "evaluate.baseline")).metrics
    return f"{baseline}, {len(metrics)} metrics"


def _ensemble(run: PlannedRun, stage: str) -> str:
    """Check that the captioners of an ensemble exist and fit each other and the experiment."""
    folders = run.config.evaluate.ensemble
    if not folders:
        return "none"
    found = [captioner_folder(folder, "evaluate.ensemble") for folder in folders]
    own = _finished(run, run.experiment.training[-1])
    require_compatible([*own, *found])
    for preprocessed in _finished(run, PREPROCESS):  # known long before the captioner is
        require_vocabulary(found[0], preprocessed)
    return ", ".join(map(str, found))


def _finished(run: PlannedRun, stage: str) -> list[Path]:
    """Return the folder of a stage's result, none while it does not exist."""
    try:
        return [run.experiment.result(stage, needed_by=EVALUATE).directory]
    except A2Error:  # reported by the check of that stage
        return []


def _instances(run: PlannedRun, stage: str) -> str:
    """Check that the annotated boxes that the attention is compared with can be read."""
    instances = run.config.data.instances
    if instances is None or run.config.evaluate.attention == "none":
        return "none"
    # the report reads them last, after METEOR
    return f"of {len(read_instances(require_file(instances, 'data.instances'))):,} images"


def _word_groups(run: PlannedRun, stage: str) -> str:
    """Check that the word groups, which are scored separately, can be read."""
    path = run.config.data.word_groups
    if path is None:
        return "none"
    return ", ".join(read_word_groups(require_file(path, "data.word_groups")))


def _scenes(run: PlannedRun, stage: str) -> str:
    """Check that the objects of generated scenes, by which truth is judged, can be read."""
    path = run.config.data.scenes
    if path is None:
        return "none"
    return f"of {len(read_scenes(require_file(path, 'data.scenes'))):,} images"


def _labels(run: PlannedRun, stage: str) -> str:
    """Check that the labels, names and id lists of a detector's training exist."""
    return ", ".join(str(path) for _, path in input_files(run.config.detector))


def _labelled_images(run: PlannedRun, stage: str) -> str:
    """Check that the folders of training and validation images exist, and count the images."""
    folders = image_files(run.config.detector).items()
    return ", ".join(f"{len(files):,} in detector.{field}" for field, files in folders)


def _start(run: PlannedRun, stage: str) -> str:
    """Check that a detector's training can start from the named weights."""
    from a2cap.pipeline.training.detector.train import start_tensors

    start = run.config.detector.start
    if start is None:
        return "random"
    tensors = start_tensors(require_file(start, "detector.start"))
    return f"{start}, {len(tensors):,} tensors"


def _java(run: PlannedRun, stage: str) -> str:
    """Check that Java starts, and that it can tokenize and score captions."""
    java, _ = find_java(), require_metric_files()
    if run.is_pending(stage):
        run_java(["-version"], heap=HEAP, text="", purpose="a test of Java")
    return str(java)


def _spice(run: PlannedRun, stage: str) -> str:
    """Report if SPICE can run; the stage runs without it too."""
    from a2cap.pipeline.metrics.score import spice_obstacle

    if not run.config.evaluate.spice:
        return "not requested"
    if run.config.preprocess.tokenizer == "unicode":
        return "left out, it reads English alone"
    obstacle = spice_obstacle()
    return "ready" if obstacle is None else f"will not run, exit code 3: {obstacle}"


def _device(run: PlannedRun, stage: str) -> str:
    """Check that torch has the device."""
    from a2cap.pipeline.runtime.device import prepare_device

    return str(prepare_device(run.config.runtime))


def _memory(run: PlannedRun, stage: str) -> str:
    """Check that the stage's largest model fits into memory."""
    return run.resources.check_memory(stage)


def _disk(run: PlannedRun, stage: str) -> str:
    """Check that the output of the stage, and of the stages before it, fits on the disk."""
    if stage == EXTRACT:
        return run.resources.check_features()
    # a detector is trained before, and apart from, the stages of the experiment
    before = () if stage == TRAIN_DETECTOR else (EXTRACT, TRAIN_XE)
    earlier = [n for n in before if n != stage and n in run.names and run.is_pending(n)]
    return run.resources.check_checkpoints(stage, after=earlier)


def _folder(run: PlannedRun, stage: str) -> str:
    """Check that a file can be created where the result will be."""
    folder = run.resources.folder(stage)
    # created, because permissions do not show a read-only mount, nor stop root
    try:
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise A2Error(
            f"cannot write in {str(folder)!r} ({error.strerror}); "
            "fix its permissions, or name another folder"
        ) from error


_Look = Callable[[PlannedRun, str], str]

_MODEL_NEEDS: dict[str, _Look] = {
    "device": _device,
    "memory": _memory,
    "disk": _disk,
    "folder": _folder,
}
_IMPORT: dict[str, _Look] = {"features": _features, "folder": _folder}
_NEEDS: dict[str, dict[str, _Look]] = {
    EXTRACT: {"images": _images, "weights": _weights, "boxes": _boxes, **_MODEL_NEEDS},
    PREPROCESS: {"annotations": _annotations, "java": _java, "folder": _folder},
    TRAIN_XE: _MODEL_NEEDS,
    TRAIN_SCST: _MODEL_NEEDS,
    TRAIN_DETECTOR: {
        "labels": _labels,
        "labelled images": _labelled_images,
        "start": _start,
        "device": _device,
        "disk": _disk,
        "folder": _folder,
    },
    EVALUATE: {
        "java": _java,
        "spice": _spice,
        "baseline": _baseline,
        "instances": _instances,
        "word groups": _word_groups,
        "scenes": _scenes,
        "ensemble": _ensemble,
        "images": _images,
        "device": _device,
        "folder": _folder,
    },
}
# Skipped if the stage's result exists: most load torch or read much, and only work that is still to
# be done needs a folder in which it may write.
_OF_WORK = frozenset(
    {
        "features",
        "weights",
        "start",
        "boxes",
        "instances",
        "scenes",
        "device",
        "memory",
        "disk",
        "folder",
    }
)
