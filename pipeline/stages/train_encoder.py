"""Stage train-encoder: captioned images to the weights of an image encoder, for `a2 extract`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.errors import ConfigError
from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.extract_config import LITE, ExtractConfig
from a2cap.extract.weights.wheels import wheel_file
from a2cap.pipeline.engine.artifact_names import ENCODER, PREPROCESS, TRAIN_ENCODER
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig
from a2cap.pipeline.training.extended_training import continued
from a2cap.pipeline.training.training_config import NO_EFFECT
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.weights.detectors import resolve_weights

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


@dataclass(frozen=True)
class TrainEncoder(Stage):
    """Training of the network of which extraction pools the map."""

    encoder: EncoderConfig
    extract: ExtractConfig
    runtime: RuntimeConfig
    files: ExperimentFiles

    name = TRAIN_ENCODER
    version = 3
    is_distributed = True

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with images, captions and the weights to start from."""
        inputs = {
            "captions": result(PREPROCESS).as_input(),
            "images": self.files.extracted(),
            "start": self.files.file(self._start(), "encoder.start"),
        }
        network = {name: getattr(self.extract, name) for name in ("grid_backbone", "grid_layer")}
        section = self.encoder.model_dump(mode="json", exclude={"start", NO_EFFECT})
        fields = {"encoder": section, "extract": network}
        stage = PreparedStage(self.name, self.version, fields, inputs, (ENCODER,), self.work)
        selected = self.encoder.selected
        return continued(stage, folder, self.encoder, score=selected, rate_falls=True)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check images, the weights to start from, the device, memory and disk."""
        return {
            "images": plan.images,
            "splits": plan.shared_files,
            "start": lambda: plan.grid_weights(self._start()),
            "network": lambda: f"{self.extract.grid_backbone}, {plan.feature_width():,} channels",
            "device": plan.device,
            "memory": plan.encoder_memory,
            "disk": lambda: plan.encoder_checkpoints(self.name),
        }

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Train the encoder; return the images that cannot be read."""
        from a2cap.pipeline.training.encoder.train import train_encoder

        run = TrainingRun(folder, inputs, events, self.runtime)
        images = self.files.listed(inputs["images"]).listed(folder)
        return train_encoder(self.encoder, self.extract, inputs["start"].path, images, run)

    def _start(self) -> Path:
        """Return the file of weights to start from; ConfigError without."""
        backbone = self.extract.grid_backbone
        if self.encoder.start is not None:
            return require_file(resolve_weights(self.encoder.start), "encoder.start")
        if backbone in LITE:
            return wheel_file(backbone)
        raise ConfigError(
            f"no weights of {backbone} are named to start from; set "
            "encoder.start to its state dict, or extract.grid_backbone to efficientnet-lite2"
        )
