"""Stage train-scst: self-critical training of the captioner from train-xe."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.model.plug_ins import plug_in_of
from a2cap.pipeline.captioning.model_description import captioner_outputs
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import EXTRACT, PREPROCESS, TRAIN_SCST, TRAIN_XE
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
from a2cap.pipeline.training.captioner.train_config import ScstConfig
from a2cap.pipeline.training.extended_training import continued
from a2cap.pipeline.training.training_config import NO_EFFECT
from a2cap.pipeline.training.training_run import TrainingRun

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


@dataclass(frozen=True)
class TrainScst(Stage):
    """Self-critical training."""

    scst: ScstConfig
    runtime: RuntimeConfig

    name = TRAIN_SCST
    version = 4
    is_distributed = True

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with what finished trainings have done of it."""
        inputs = {
            "features": result(EXTRACT).as_input(),
            "captions": result(PREPROCESS).as_input(),
            "model": result(TRAIN_XE).as_input(),
        }
        fields = {"scst": self.scst.model_dump(mode="json", exclude={NO_EFFECT})}
        plug_in = plug_in_of(self.scst.reward or "")
        if plug_in is not None:  # the code of the reward
            fields["plug_in"] = asdict(plug_in)
        outputs = captioner_outputs(inputs["features"].path)
        stage = PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)
        return continued(stage, folder, self.scst, score=self.scst.selected)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check device, memory and disk."""
        what, remedy = "self-critical training", "raise scst.accumulate"
        return plan.training(self.name, self_critical_tokens, what, remedy)

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Train the captioner further."""
        from a2cap.pipeline.training.captioner.self_critical import refine_captioner

        refine_captioner(self.scst, TrainingRun(folder, inputs, events, self.runtime))
        return []


def self_critical_tokens(config: Config, ranks: int = 1) -> int:
    """Return the tokens that a step keeps in memory on each of so many ranks."""
    scst = config.scst
    images = math.ceil(scst.batch_size / (scst.accumulate * ranks))
    tokens = images * scst.samples * scst.max_length
    if scst.mask == "continued":  # a second pass, over reference captions
        tokens += images * scst.captions_per_image * (config.preprocess.max_length + 1)
    return tokens
