"""Stage train-xe: a captioner trained by cross-entropy and the mask loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.plug_ins import plug_in_of
from a2cap.pipeline.captioning.model_description import captioner_outputs
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import EXTRACT, PREPROCESS, TRAIN_XE
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import Stage
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from a2cap.pipeline.training.extended_training import continued
from a2cap.pipeline.training.training_config import NO_EFFECT
from a2cap.pipeline.training.training_run import TrainingRun

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


@dataclass(frozen=True)
class TrainXe(Stage):
    """Cross-entropy training."""

    train: TrainConfig
    model: ModelConfig
    runtime: RuntimeConfig
    instances: Path | None = None

    name = TRAIN_XE
    version = 5
    is_distributed = True

    @property
    def fields(self) -> dict[str, Any]:
        """All fields but a path, whose captioner is an input."""
        fields = {"train": self.train.model_dump(mode="json", exclude={"start", NO_EFFECT})}
        plug_in = plug_in_of(self.model.kind)  # a2's own code is in the version of the stage
        added = {} if plug_in is None else {"plug_in": asdict(plug_in)}
        return {**fields, "model": self.model.model_dump(mode="json"), **added}

    @property
    def reads(self) -> Mapping[str, str]:
        """Features and preprocessed captions."""
        return {"features": EXTRACT, "captions": PREPROCESS}

    def files(self, files: ExperimentFiles) -> dict[str, Input]:
        """Return the captioner to start from and the boxes of supervised attention, if any."""
        start = self.train.start
        found = {} if start is None else {"start": files.captioner(start, "train.start")}
        if self.train.supervision:
            found["instances"] = files.file(self.instances, "data.instances")
        return found

    def outputs(self, inputs: Mapping[str, Input]) -> tuple[str, ...]:
        """Return the files of a captioner."""
        return captioner_outputs(inputs["features"].path)

    def work_checks(self, plan: "Plan") -> dict[str, Check]:
        """Check device, memory, disk and folder."""
        return {
            **plan.training(self.name, training_tokens, "training", "raise train.accumulate"),
            **super().work_checks(plan),
        }

    def prepare(self, inputs: Mapping[str, Input], results: Path) -> PreparedStage:
        """Return the stage with what finished trainings have done of it."""
        stage = super().prepare(inputs, results)
        rate_falls = self.train.rate_depends_on_epochs
        return continued(
            stage, results, self.train, score=self.train.selected, rate_falls=rate_falls
        )

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Train the captioner."""
        from a2cap.pipeline.training.captioner.cross_entropy import train_captioner

        run = TrainingRun(folder, inputs, events, self.runtime)
        train_captioner(self.train, self.model, run)
        return []


def training_tokens(config: Config, ranks: int = 1) -> int:
    """Return the tokens that a step keeps in memory on each of so many ranks."""
    train = config.train
    captions = train.captions_per_image if train.grouping == "image" else 1
    items = math.ceil(train.batch_size / (train.accumulate * ranks))
    return 2 * items * captions * (config.preprocess.max_length + 1)  # forward and backward
