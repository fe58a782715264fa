"""Stage train-detector: labelled images to the weights of a detector, for `a2 extract`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.artifact_names import (
    DETECTOR,
    DETECTOR_FIGURES,
    DETECTOR_NAMES,
    TRAIN_DETECTOR,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
from a2cap.pipeline.training.detector.detector_config import (
    DetectorConfig,
    image_files,
    input_files,
)
from a2cap.pipeline.training.extended_training import continued
from a2cap.pipeline.training.training_config import NO_EFFECT
from a2cap.pipeline.training.training_run import TrainingRun

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan

_PATHS = {
    "images",
    "labels",
    "ids",
    "validation_images",
    "validation_labels",
    "validation_ids",
    "attributes",
    "object_names",
    "attribute_names",
    "start",
}
"""Fields that are paths: the key contains the digests of their files instead."""


@dataclass(frozen=True)
class TrainDetector(Stage):
    """Training of a detector; its weights are a file for `extract.weights`."""

    detector: DetectorConfig
    runtime: RuntimeConfig
    files: ExperimentFiles

    name = TRAIN_DETECTOR
    version = 3
    is_distributed = True
    always = ("labels", "labelled images")

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with its files and images, by the field that names them.

        It is the finished one that would end at the same epoch, if there is one.
        """
        paths = {**dict(input_files(self.detector)), "start": self.detector.start}
        inputs = self.files.optional("detector", **paths)
        for field, images in image_files(self.detector).items():
            inputs[field] = self.files.hashes.images(getattr(self.detector, field), images)
        fields = {"detector": self.detector.model_dump(mode="json", exclude={*_PATHS, NO_EFFECT})}
        outputs = (DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES)
        stage = PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)
        return continued(stage, folder, self.detector, score="AP50", rate_falls=True)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check labels, names, lists and images, the weights to start from, device and disk."""
        return {
            "labels": lambda: ", ".join(str(path) for _, path in input_files(self.detector)),
            "labelled images": self._images,
            "start": self._start,
            "device": plan.device,
            "disk": lambda: plan.detector_checkpoints(self.name),
        }

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Train the detector; return the images that cannot be used."""
        from a2cap.pipeline.training.detector.train import train_detector

        run = TrainingRun(folder, inputs, events, self.runtime)
        data = train_detector(self.detector, run)
        return [*data.training.skipped, *data.validation.skipped]

    def _images(self) -> str:
        folders = image_files(self.detector).items()
        return ", ".join(f"{len(files):,} in detector.{field}" for field, files in folders)

    def _start(self) -> str:
        from a2cap.pipeline.training.detector.train import start_tensors

        start = self.detector.start
        if start is None:
            return "random"
        tensors = start_tensors(require_file(start, "detector.start"))
        return f"{start}, {len(tensors):,} tensors"
