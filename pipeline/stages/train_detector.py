"""Stage train-detector: labelled images to the weights of a detector, for `a2 extract`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.artifact_names import (
    DETECTOR,
    DETECTOR_FIGURES,
    DETECTOR_NAMES,
    TRAIN_DETECTOR,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import Stage
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

    name = TRAIN_DETECTOR
    version = 2
    is_distributed = True

    @property
    def fields(self) -> dict[str, Any]:
        """All fields but paths."""
        return {"detector": self.detector.model_dump(mode="json", exclude={*_PATHS, NO_EFFECT})}

    def files(self, files: ExperimentFiles) -> dict[str, Input]:
        """Return the files of the section, and its images, by the field that names them."""
        named = {**dict(input_files(self.detector)), "start": self.detector.start}
        inputs = files.optional("detector", **named)
        for field, images in image_files(self.detector).items():
            inputs[field] = files.hashes.images(getattr(self.detector, field), images)
        return inputs

    def outputs(self, inputs: Mapping[str, Input]) -> tuple[str, ...]:
        """Return the detector, its figures and the names of its classes."""
        return (DETECTOR, DETECTOR_FIGURES, DETECTOR_NAMES)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check that labels, names, lists and images exist."""
        return {
            "labels": lambda: ", ".join(str(path) for _, path in input_files(self.detector)),
            "labelled images": self._images,
        }

    def work_checks(self, plan: "Plan") -> dict[str, Check]:
        """Check the weights to start from, the device and the disk."""
        return {
            "start": self._start,
            "device": plan.device,
            "disk": lambda: plan.detector_checkpoints(self.name),
            **super().work_checks(plan),
        }

    def prepare(self, inputs: Mapping[str, Input], results: Path) -> PreparedStage:
        """Return the stage, or the finished one that would end at the same epoch."""
        stage = super().prepare(inputs, results)
        return continued(stage, results, self.detector, score="AP50", rate_falls=True)

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
