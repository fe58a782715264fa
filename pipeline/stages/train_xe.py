"""Stage train-xe: a captioner trained by cross-entropy and the mask loss."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.model.plug_ins import plug_in_of
from a2cap.pipeline.captioning.model_description import captioner_outputs
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import EXTRACT, PREPROCESS, TRAIN_XE
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check, Doubt, known
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
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
    instances: Path | None
    files: ExperimentFiles

    name = TRAIN_XE
    version = 6
    is_distributed = True

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with what finished trainings have done of it."""
        inputs = {
            "features": result(EXTRACT).as_input(),
            "captions": result(PREPROCESS).as_input(),
        }
        start = self.train.start
        if start is not None:
            inputs["start"] = self.files.captioner(start, "train.start")
        if self.train.supervision:
            inputs["instances"] = self.files.file(self.instances, "data.instances")
        # without the path of the captioner to start from, which is an input, and without the name
        # of a recipe, whose settings are those of the other fields
        without = {"start", "optim", NO_EFFECT}
        fields = {
            "train": self.train.model_dump(mode="json", exclude=without),
            "model": self.model.model_dump(mode="json"),
        }
        if self.train.supervision:
            fields["object_words"] = {"version": 2}  # of the words that name categories
        plug_in = plug_in_of(self.model.kind)  # a2's own code is in the version of the stage
        if plug_in is not None:
            fields["plug_in"] = asdict(plug_in)
        outputs = captioner_outputs(inputs["features"].path)
        stage = PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)
        rate_falls = self.train.rate_depends_on_epochs
        return continued(
            stage, folder, self.train, score=self.train.selected, rate_falls=rate_falls
        )

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check device, memory and disk."""
        needs = plan.training(self.name, training_tokens, "training", "raise train.accumulate")
        needs["splits"] = plan.shared_images
        return {**needs, "schedule": lambda: self._schedule(plan.config.preprocess.references)}

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Train the captioner."""
        from a2cap.pipeline.training.captioner.cross_entropy import train_captioner

        run = TrainingRun(folder, inputs, events, self.runtime)
        train_captioner(self.train, self.model, run)
        return []

    def _schedule(self, references: int | None) -> str:
        """Compare the warm-up with all updates that the training may make."""
        train, warmup = self.train, self.train.warmup_updates
        if not warmup:
            return "no warm-up"
        images = known(lambda: self.files.annotations.images)
        counts = [len(image.captions[:references]) for image in images if image.split == "train"]
        items = len(counts) if train.grouping == "image" else sum(counts)
        updates = train.epochs * math.ceil(items / train.batch_size)
        sentence = f"{warmup:,} of at most {updates:,} updates are warm-up"
        if 2 * warmup <= updates:
            return sentence
        return Doubt(
            f"{sentence}, so that the learning rate stays low in most of the training; set "
            f"train.warmup to {max(updates // 10, 1):,}, or train.schedule to constant"
        )


def training_tokens(config: Config, ranks: int = 1) -> int:
    """Return the tokens that a step keeps in memory on each of so many ranks."""
    train = config.train
    captions = train.captions_per_image if train.grouping == "image" else 1
    items = math.ceil(train.batch_size / (train.accumulate * ranks))
    return 2 * items * captions * (config.preprocess.max_length + 1)  # forward and backward
