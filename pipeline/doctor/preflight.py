"""Whether stages can run, before any model is loaded: all that stands in their way, at once."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.annotations.word_groups import read_word_groups
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.paths import require_file, require_folder
from a2cap.pipeline.captioning.saved_captioner import captioner_folder
from a2cap.pipeline.doctor.resources import NotKnownYet, Resources
from a2cap.pipeline.engine.artifacts import (
    CALIBRATE,
    EVALUATE,
    EXTRACT,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.metrics.java import find_java
from a2cap.pipeline.stages import (
    preprocess,
)
from a2cap.pipeline.training.detector.data import image_files, input_files
from a2cap.pipeline.weights.detectors import weights_file

if TYPE_CHECKING:
    from a2cap.pipeline.experiment import Experiment


@dataclass(frozen=True)
class Check:
    """One need of a stage: what was found, or the problem, whose text ends in the remedy.

    state: "ok", "problem", or "unknown" where another problem has to be solved first.
    """

    stage: str
    need: str
    state: str
    found: str
    problem: A2Error | None = None


def require_runnable(
    experiment: "Experiment",
    names: Sequence[str],
    *,
    force: bool = False,
    output: Path | None = None,
) -> None:
    """Raises everything that keeps the named stages from running as one error.

    A single problem is raised as it is; several are a ConfigError where all of them are.
    """
    checks = Preflight(experiment, names, force=force, output=output).checks()
    problems = {str(check.problem): check.problem for check in checks if check.problem}
    if len(problems) == 1:
        raise next(iter(problems.values()))
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        text = f"{len(problems)} problems, nothing was begun:{lines}"
        all_config = all(isinstance(problem, ConfigError) for problem in problems.values())
        raise ConfigError(text) if all_config else A2Error(text)


class Preflight:
    """The needs of the named stages, looked at one by one.

    force: they run although their results are there; output: the place of the result, where that is
    not in the artifacts.
    """

    def __init__(
        self,
        experiment: "Experiment",
        names: Sequence[str],
        *,
        force: bool = False,
        output: Path | None = None,
    ) -> None:
        self._experiment = experiment
        self._config = experiment.config
        self._names = names
        self._force = force
        self._output = output
        self._room = Resources(experiment, output=output)
        self._runs: dict[str, bool] = {}

    def checks(self) -> list[Check]:
        """Every need of every stage, in the order in which they run."""
        return [
            self._check(stage, need, look)
            for stage in self._names
            for need, look in _NEEDS[stage].items()
        ]

    def _check(self, stage: str, need: str, look: "_Look") -> Check:
        if need in _COSTLY and not self._will_run(stage):
            return Check(stage, need, "ok", "the result is there")
        try:
            return Check(stage, need, "ok", look(self, stage))
        except NotKnownYet as error:
            return Check(stage, need, "unknown", str(error))
        except A2Error as error:
            return Check(stage, need, "problem", str(error), error)

    def _will_run(self, stage: str) -> bool:
        """Whether the stage has to work; True where that cannot be told yet."""
        if stage not in self._runs:
            self._runs[stage] = self._force or not self._has_result(stage)
        return self._runs[stage]

    def _has_result(self, stage: str) -> bool:
        if self._output is not None:
            return self._output.exists()
        if not any((self._experiment.artifacts / stage).glob("*/")):
            return False  # told without the digests of all images, which may take minutes
        try:
            return self._experiment.status(stage).state == "done"
        except A2Error:
            return False

    def images(self, stage: str) -> str:
        """Whether the folder is there, and no more images are missing than may be left out."""
        images = self._experiment.images
        missing = [name for name in sorted(images) if images[name] is None]
        if len(missing) == len(images):
            folder = str(require_folder(self._config.data.images, "data.images"))
            raise InputError(
                f"none of the {len(images):,} images has a file in {folder!r}; check data.images"
            )
        gone = [SkippedItem(name, "image file not found") for name in missing]
        check_skip_limit(gone, len(images), "images")
        return f"{len(images):,}, {len(missing):,} of them missing"

    def weights(self, stage: str) -> str:
        """Whether detector weights are named, and their header can be read."""
        path = weights_file(self._config.extract)
        return f"{path or 'calibrated-random'}, {self._room.feature_width:,} numbers per region"

    def boxes(self, stage: str) -> str:
        """Whether every image has boxes, where they are given."""
        boxes = self._config.extract.boxes
        return f"{self._room.given_regions:,} are given" if boxes == "given" else boxes

    def annotations(self, stage: str) -> str:
        """Whether captions can be read, are in splits, and few enough have to be left out."""
        data = self._config.data
        path = require_file(data.annotations, "data.annotations")
        if data.split_list is not None:
            require_file(data.split_list, "data.split_list")
        found = self._experiment.annotations
        unusable = preprocess.require_usable(found, path)
        return f"{len(found.images):,} images, {len(unusable):,} items left out"

    def baseline(self, stage: str) -> str:
        """Whether the metrics to compare with are there."""
        baseline = self._config.evaluate.baseline
        return "none" if baseline is None else str(require_file(baseline, "evaluate.baseline"))

    def ensemble(self, stage: str) -> str:
        """Whether the further captioners of an ensemble are there."""
        folders = self._config.evaluate.ensemble
        found = [str(captioner_folder(folder, "evaluate.ensemble")) for folder in folders]
        return ", ".join(found) or "none"

    def things(self, stage: str) -> str:
        """Whether the annotated boxes are there with which the attention is compared."""
        instances = self._config.data.instances
        if instances is None or self._config.evaluate.attention == "none":
            return "none"
        return str(require_file(instances, "data.instances"))

    def word_groups(self, stage: str) -> str:
        """Whether the groups of words that are scored apart can be read."""
        path = self._config.data.word_groups
        if path is None:
            return "none"
        return ", ".join(read_word_groups(require_file(path, "data.word_groups")))

    def labels(self, stage: str) -> str:
        """Whether labels, names and lists are there that a detector is trained from."""
        return ", ".join(str(path) for _, path in input_files(self._config.detector))

    def labelled_images(self, stage: str) -> str:
        """Whether the folders are there, and what of them may be trained and validated on."""
        folders = image_files(self._config.detector).items()
        return ", ".join(f"{len(files):,} in detector.{field}" for field, files in folders)

    def start(self, stage: str) -> str:
        """Whether a detector's training can begin with the weights that are named."""
        from a2cap.pipeline.training.detector.train import start_tensors

        start = self._config.detector.start
        if start is None:
            return "random"
        tensors = start_tensors(require_file(start, "detector.start"))
        return f"{start}, {len(tensors):,} tensors"

    def java(self, stage: str) -> str:
        """Whether captions can be tokenised and scored."""
        return str(find_java())

    def spice(self, stage: str) -> str:
        """Whether SPICE can run; where it cannot, the stage does without."""
        from a2cap.pipeline.metrics.score import spice_obstacle

        if not self._config.evaluate.spice:
            return "not asked for"
        obstacle = spice_obstacle()
        return "ready" if obstacle is None else f"will not run: {obstacle}"

    def device(self, stage: str) -> str:
        """Whether torch has the device."""
        from a2cap.pipeline.runtime.device import prepare_device

        return str(prepare_device(self._config.runtime))

    def memory(self, stage: str) -> str:
        """Whether the largest model of the stage fits."""
        if stage == TRAIN_XE:
            return self._room.for_training()
        if stage == TRAIN_SCST:
            return self._room.for_self_critical()
        return self._room.for_detector()

    def disk(self, stage: str) -> str:
        """Whether what the stage writes fits."""
        if stage == EXTRACT:
            return self._room.for_features()
        before = () if stage == TRAIN_DETECTOR else (EXTRACT, TRAIN_XE)
        earlier = [
            name
            for name in before
            if name != stage and name in self._names and self._will_run(name)
        ]
        return self._room.for_checkpoints(stage, after=earlier)

    def place(self, stage: str) -> str:
        """Whether a file can be made where the result will lie."""
        folder = self._room.folder(stage)
        try:
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError as error:
            raise A2Error(
                f"cannot write in {str(folder)!r} ({error.strerror}); "
                "mend that, or name another place"
            ) from error


_Look = Callable[[Preflight, str], str]

_NEEDS: dict[str, dict[str, _Look]] = {
    CALIBRATE: {
        "images": Preflight.images,
        "device": Preflight.device,
        "memory": Preflight.memory,
        "place": Preflight.place,
    },
    EXTRACT: {
        "images": Preflight.images,
        "weights": Preflight.weights,
        "boxes": Preflight.boxes,
        "device": Preflight.device,
        "memory": Preflight.memory,
        "disk": Preflight.disk,
        "place": Preflight.place,
    },
    PREPROCESS: {
        "annotations": Preflight.annotations,
        "java": Preflight.java,
        "place": Preflight.place,
    },
    TRAIN_XE: {
        "device": Preflight.device,
        "memory": Preflight.memory,
        "disk": Preflight.disk,
        "place": Preflight.place,
    },
    TRAIN_SCST: {
        "device": Preflight.device,
        "memory": Preflight.memory,
        "disk": Preflight.disk,
        "place": Preflight.place,
    },
    TRAIN_DETECTOR: {
        "labels": Preflight.labels,
        "labelled images": Preflight.labelled_images,
        "start": Preflight.start,
        "device": Preflight.device,
        "disk": Preflight.disk,
        "place": Preflight.place,
    },
    EVALUATE: {
        "java": Preflight.java,
        "spice": Preflight.spice,
        "baseline": Preflight.baseline,
        "things": Preflight.things,
        "word groups": Preflight.word_groups,
        "ensemble": Preflight.ensemble,
        "images": Preflight.images,
        "device": Preflight.device,
        "place": Preflight.place,
    },
}
"""Stage -> what it needs -> where that is looked at."""

_COSTLY = frozenset({"weights", "start", "boxes", "device", "memory", "disk"})
"""Needs that load torch or read much: not looked at where the stage's result is there."""
