"""Stage evaluate: captions of a split, their scores, and the report.

Outputs are `captions.json` (COCO results), `metrics.json`, `per_image.json`, `report.html`, and
unless `evaluate.attention` is none `attention.h5`: the attention at each token of the captions.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.annotations.instances import read_instances
from a2cap.data.annotations.word_groups import read_word_groups
from a2cap.data.captions.coco_objects import read_coco_objects
from a2cap.data.data_config import DataConfig
from a2cap.data.errors import ConfigError
from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.model.plug_ins import plug_in_of
from a2cap.pipeline.captioning.model_description import require_compatible, require_vocabulary
from a2cap.pipeline.engine.artifact_names import (
    ATTENTION,
    EVALUATE,
    EXTRACT,
    FURTHER_MODEL,
    METRICS,
    PER_IMAGE,
    PREPROCESS,
    REPORT,
    RESULTS,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig, EvaluationRun
from a2cap.pipeline.metrics.metric_table import versions
from a2cap.pipeline.metrics.pycocoevalcap import require_metric_files
from a2cap.pipeline.metrics.spice import spice_obstacle
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.stage import OutcomeOf, Stage
from a2cap.pipeline.weights.captioners import captioner_folder

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


@dataclass(frozen=True)
class Evaluate(Stage):
    """Evaluation of one trained captioner or an ensemble.

    model: the stage that trains the captioner. The images of `files` are for the report only, so
    they are not inputs.
    """

    evaluate: EvaluateConfig
    data: DataConfig
    runtime: RuntimeConfig
    model: str
    files: ExperimentFiles

    name = EVALUATE
    version = 13
    always = ("metrics", "spice", "baseline", "word groups", "ensemble", "model", "images")

    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage with further captioners, and what the captions are compared with."""
        config, data, files = self.evaluate, self.data, self.files
        if config.model is None:
            inputs = {
                "features": result(EXTRACT).as_input(),
                "captions": result(PREPROCESS).as_input(),
                "model": result(self.model).as_input(),
            }
        else:
            inputs = {
                "captions": result(PREPROCESS).as_input(),
                "images": files.extracted(),
                "model": files.pretrained(config.model, "evaluate.model"),
            }
        for number, path in enumerate(config.ensemble, start=2):
            inputs[f"{FURTHER_MODEL}{number}"] = files.captioner(path, "evaluate.ensemble")
        # without attention there is no grounding, and the boxes are not read
        instances = None if config.attention == "none" and not config.chair else data.instances
        inputs |= files.optional("evaluate", baseline=config.baseline)
        inputs |= files.optional(
            "data", instances=instances, word_groups=data.word_groups, scenes=data.scenes
        )
        left_out = {"baseline", "ensemble", "model"}
        left_out |= {"erasure"} if config.model is None else set()
        section = config.model_dump(mode="json", exclude=left_out)
        # else a result that lacks SPICE would stay the result once SPICE is installed
        fields = {"evaluate": {**section, "has_spice": self._no_spice is None}}
        plug_ins = {name: plug_in_of(name) for name in config.metrics}
        declared = {name: asdict(plug_in) for name, plug_in in plug_ins.items() if plug_in}
        # a new metric, or another version of one, evaluates again
        fields["metrics"] = {**versions(config.metrics), **declared}
        attention = () if config.attention == "none" else (ATTENTION,)
        outputs = (RESULTS, METRICS, PER_IMAGE, REPORT, *attention)
        return PreparedStage(self.name, self.version, fields, inputs, outputs, self.work)

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Check what the captions are compared with, the images of the report, and the device."""
        return {
            "metrics": require_metric_files,
            "spice": lambda: self._spice(plan),
            "baseline": self._baseline,
            "word groups": self._word_groups,
            "ensemble": lambda: self._ensemble(plan),
            "model": self._model,
            "images": plan.images,
            # large files
            "instances": self._instances,
            "scenes": self._scenes,
            "device": plan.device,
        }

    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Caption, score and report."""
        # imported late, with torch: `a2 status` declares stages too
        from a2cap.pipeline.evaluation.evaluate_pretrained import evaluate_split

        images, no_spice = self.files.images, self._no_spice
        run = EvaluationRun(self.evaluate, inputs, images, self.runtime, folder, events, no_spice)
        return evaluate_split(run)

    @cached_property
    def _no_spice(self) -> str | None:
        return spice_obstacle(requested=bool(self.evaluate.spice))

    def _spice(self, plan: "Plan") -> str:
        """Report if SPICE can run; the stage runs without it too."""
        if not self.evaluate.spice:
            return "not requested"
        if plan.config.preprocess.tokenizer == "unicode":
            return "left out, it reads English alone"
        no_spice = self._no_spice
        if no_spice is None:
            return "ready"
        state = "left out" if self.evaluate.spice == "auto" else "will not run, exit code 3"
        return f"{state}: {no_spice}"

    def _model(self) -> str:
        """Check that the settings are those of the kind of model."""
        config = self.evaluate
        if config.model is None and config.prompt is not None:
            raise ConfigError(
                f"evaluate.prompt is {config.prompt!r}, but captioners of a2 read no text; leave "
                "it out, or set evaluate.model"
            )
        # the default is written with all other settings, and read again
        is_default = config.erasure == EvaluateConfig.model_fields["erasure"].default
        if config.model is None and not is_default:
            raise ConfigError(
                f"evaluate.erasure is {config.erasure}, but is measured of a model of transformers "
                'alone; leave it out, and run "a2 analyze"'
            )
        if config.model is not None and config.ensemble:
            raise ConfigError(
                "evaluate.ensemble cannot extend a model of transformers, evaluate.model; leave "
                "one of them out"
            )
        if config.model is not None and config.neighbours:
            raise ConfigError(
                f"evaluate.neighbours is {config.neighbours}, but a model of transformers, "
                "evaluate.model, has no consensus; leave out neighbours and consensus, or the model"
            )
        return "the experiment's" if config.model is None else str(config.model)

    def _baseline(self) -> str:
        path = self.evaluate.baseline
        if path is None:
            return "none"
        from a2cap.pipeline.evaluation.metrics_file import read_baseline

        metrics = read_baseline(require_file(path, "evaluate.baseline")).metrics
        return f"{path}, {len(metrics)} metrics"

    def _word_groups(self) -> str:
        path = self.data.word_groups
        if path is None:
            return "none"
        return ", ".join(read_word_groups(require_file(path, "data.word_groups")))

    def _instances(self) -> str:
        path = self.data.instances
        if self.evaluate.chair:
            return self._coco_objects()
        if path is None or self.evaluate.attention == "none":
            return "none"
        # the report reads them last, after METEOR
        return f"of {len(read_instances(require_file(path, 'data.instances'))):,} images"

    def _coco_objects(self) -> str:
        """Check what CHAIR needs."""
        path, scenes = self.data.instances, self.data.scenes
        if path is None or scenes is not None:
            problem = "data.instances is not set" if path is None else f"data.scenes is {scenes!s}"
            raise ConfigError(
                f"evaluate.chair needs COCO's instances alone, and {problem}; set data.instances "
                "and no data.scenes, or leave evaluate.chair out"
            )
        objects = read_coco_objects(require_file(path, "data.instances"))
        return f"of {len(objects):,} images, COCO's"

    def _scenes(self) -> str:
        path = self.data.scenes
        if path is None:
            return "none"
        from a2cap.data.scenes.truth import read_scenes

        return f"of {len(read_scenes(require_file(path, 'data.scenes'))):,} images"

    def _ensemble(self, plan: "Plan") -> str:
        """Check that the captioners of an ensemble exist and fit each other and the experiment."""
        if not self.evaluate.ensemble:
            return "none"
        members = [captioner_folder(path, "evaluate.ensemble") for path in self.evaluate.ensemble]
        trained = plan.stages.folder_of(self.model)
        require_compatible([*([] if trained is None else [trained]), *members])
        preprocessed = plan.stages.folder_of(PREPROCESS)  # known long before the captioner is
        if preprocessed is not None:
            require_vocabulary(members[0], preprocessed)
        return ", ".join(map(str, members))
