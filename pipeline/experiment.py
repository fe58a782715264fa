"""Stages of one experiment, in order; each is prepared once its inputs are finished."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import (
    EVALUATE,
    EXTRACT,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_ENCODER,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import (
    Outcome,
    StripeOutcome,
    finished,
    require_replaceable,
    run_stage,
    run_stripe,
)
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.engine.status import Status, UnfinishedStageError, status_of
from a2cap.pipeline.runtime.rank_group import RankGroup
from a2cap.pipeline.stages.evaluate import Evaluate
from a2cap.pipeline.stages.extract import Extract, ImportFeatures
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.stages.preprocess import Preprocess
from a2cap.pipeline.stages.stage import Stage
from a2cap.pipeline.stages.train_detector import TrainDetector
from a2cap.pipeline.stages.train_encoder import TrainEncoder
from a2cap.pipeline.stages.train_scst import TrainScst
from a2cap.pipeline.stages.train_xe import TrainXe

logger = logging.getLogger(__name__)


class Experiment:
    """The stages of one experiment over one artifacts folder; group: ranks that share the work."""

    def __init__(self, config: Config, artifacts: Path, *, group: RankGroup | None = None) -> None:
        self.config = config
        self.artifacts = artifacts
        self.files = files = ExperimentFiles(config, artifacts)
        self._group = group
        self._outcomes: dict[str, Outcome] = {}
        self.watch: Callable[[Path], None] | None = None
        """Called with the folder of a training before its work and after each of its events."""
        self.training = [TRAIN_XE, TRAIN_SCST] if config.scst.epochs else [TRAIN_XE]
        """Names of the training stages; the last one trains the captioner that is evaluated."""
        features = [EXTRACT, PREPROCESS]
        if config.trains_encoder:
            features = [PREPROCESS, TRAIN_ENCODER, EXTRACT]
        self.names = [*features, *self.training, EVALUATE]
        """Names of the stages, in the order in which they run."""
        data, runtime = config.data, config.runtime
        stages: tuple[Stage, ...] = (
            Extract(config.extract, data, runtime, files)
            if data.features is None
            else ImportFeatures(data, files),
            Preprocess(config.preprocess, data, files),
            TrainXe(config.train, config.model, runtime, data.instances, files),
            TrainScst(config.scst, runtime),
            Evaluate(config.evaluate, data, runtime, self.training[-1], files),
            TrainDetector(config.detector, runtime, files),
            TrainEncoder(config.encoder, config.extract, runtime, files),
        )
        self.declared = {stage.name: stage for stage in stages}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.files.hashes.close()

    @property
    def shown(self) -> list[str]:
        """Names of the stages that `a2 status` and `a2 doctor` show.

        The training of a detector comes first if its labels are set, and alone if data is not.
        """
        data = self.config.data
        if self.config.detector.labels is None:
            return self.names
        if data.images is None and data.annotations is None:
            return [TRAIN_DETECTOR]
        return [TRAIN_DETECTOR, *self.names]

    def phase(self, name: str) -> list[str]:
        """Return the training stages of a phase: xe, scst or all; ConfigError if it has none."""
        if name == "scst" and TRAIN_SCST not in self.training:
            raise ConfigError(
                "self-critical training is disabled: scst.epochs is 0; set it to 1 or more"
            )
        return {"xe": [TRAIN_XE], "scst": [TRAIN_SCST]}.get(name, self.training)

    def encoder(self) -> list[str]:
        """Return the stage that trains an image encoder; ConfigError if there is none."""
        if self.config.trains_encoder:
            return [TRAIN_ENCODER]
        raise ConfigError(
            f"no encoder is trained: extract.weights is {self.config.extract.weights!r}; set it to "
            "encoder, and leave data.features out"
        )

    def stage(self, name: str) -> PreparedStage:
        """Prepare a stage; raise UnfinishedStageError if a stage that it reads is not finished."""
        result = partial(self.result, needed_by=name)
        return self.declared[name].prepare(result, self.artifacts / name)

    def run(self, name: str, *, force: bool = False, output: Path | None = None) -> Outcome:
        """Run a stage unless its result exists, in the artifacts folder or at `output`."""
        stage = self.stage(name)
        if self._group is not None and self.declared[name].is_distributed:
            stage = self._announced(stage, self._group)
        if self.watch is not None and name in self.training:
            stage = _watched(stage, self.watch)
        paths, text = self._paths(stage, output), self.config.to_yaml()
        outcome = run_stage(stage, paths, resolved_config=text, force=force)
        self._outcomes[name] = outcome
        return outcome

    def _announced(self, stage: PreparedStage, group: RankGroup) -> PreparedStage:
        """Return the stage, whose work the other ranks enter too."""

        def work(folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
            group.announce(stage.name, folder, {name: file.path for name, file in inputs.items()})
            return stage.work(folder, inputs, events)

        return replace(stage, work=work)

    def run_all(
        self,
        names: Sequence[str],
        report: Callable[[str, Outcome], None],
        *,
        force: bool = False,
        output: Path | None = None,
    ) -> list[Outcome]:
        """Check and run stages one after the other; report: called with each outcome.

        On ranks other than 0, do the work that rank 0 begins and return no outcome.
        """
        if self._group is not None and not self._group.is_main:
            self._follow(self._group)
            return []
        # imported late, with torch: `a2 status` opens experiments too
        from a2cap.pipeline.stages.plan import require_runnable

        require_runnable(self, names, force=force, output=output)
        outcomes = []
        for number, name in enumerate(names, start=1):
            if len(names) > 1:
                logger.info("stage %d of %d: %s", number, len(names), name)
            outcomes.append(self.run(name, force=force, output=output))
            report(name, outcomes[-1])
        return outcomes

    def _follow(self, group: RankGroup) -> None:
        for task in group.announced():
            inputs = Inputs({name: Input(Path(path), "") for name, path in task.inputs.items()})
            folder = Path(task.folder)
            self.declared[task.stage].work(folder, inputs, EventLog(folder))

    def run_stripe(self, stripe: Stripe, *, output: Path | None = None) -> StripeOutcome:
        """Run a stripe of extraction; the process that finds all shards done publishes it."""
        stage = self.stage(EXTRACT)
        text = self.config.to_yaml()
        return run_stripe(stage, self._paths(stage, output), stripe, resolved_config=text)

    def _paths(self, stage: PreparedStage, output: Path | None = None) -> StagePaths:
        if output is None:
            return StagePaths.in_artifacts(self.artifacts, stage)
        require_replaceable(output, stage.name)
        return StagePaths(output)

    def status(self, name: str) -> Status:
        """Return the status of a stage and the reasons for a run."""
        try:
            stage = self.stage(name)
        except UnfinishedStageError as error:
            return Status(name, "waiting", None, [f"waits for {error.waits_for}"])
        remarks = self.declared[name].remarks
        paths = self._paths(stage)
        if (outcome := finished(stage, paths)) is not None:
            self._outcomes[name] = outcome  # for the stages that read it
        return status_of(stage, paths, self.artifacts / name, remarks=remarks)

    def result(self, name: str, *, needed_by: str) -> Outcome:
        """Return the finished result of a stage; raise UnfinishedStageError if it has none."""
        # prepared once, so that later stages of this command need not digest its inputs again
        if name not in self._outcomes:
            stage = self.stage(name)
            outcome = finished(stage, self._paths(stage))
            if outcome is None:
                raise UnfinishedStageError(needed_by, name)
            self._outcomes[name] = outcome
        return self._outcomes[name]

    def folder_of(self, stage: str) -> Path | None:
        """Return the folder of a stage's result, None if it does not exist."""
        try:
            return self.result(stage, needed_by="a check").directory
        except A2Error:  # reported by the check of that stage
            return None


def _watched(stage: PreparedStage, watch: Callable[[Path], None]) -> PreparedStage:
    """Return the stage, whose folder is given to `watch` before its work and after its events."""

    def work(folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        watch(folder)
        return stage.work(folder, inputs, replace(events, watch=watch))

    return replace(stage, work=work)
