"""Stages of one experiment, in order; each is built once its inputs are finished."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from a2cap.data.annotations.layouts import require_annotations
from a2cap.data.annotations.read import Annotations, read_annotations, resolve_files
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.paths import require_file
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.data.image_ids import find_images, list_images
from a2cap.data.sources.folder import ImageList
from a2cap.data.sources.location import version_of
from a2cap.data.sources.opening import (
    image_source,
    is_source,
    open_source,
    require_image_folder,
)
from a2cap.extract.config import ExtractConfig
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.config import Config
from a2cap.pipeline.engine.artifacts import (
    CAPTIONER,
    EVALUATE,
    EXTRACT,
    EXTRACTOR,
    FURTHER_MODEL,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.engine.explain import nearest_difference
from a2cap.pipeline.engine.hash_cache import HashCache
from a2cap.pipeline.engine.inputs import Input, result_input
from a2cap.pipeline.engine.lock import is_locked, lock_holder
from a2cap.pipeline.engine.run import Outcome, finished, resumed, run_stage
from a2cap.pipeline.engine.run_stripe import StripeOutcome, run_stripe
from a2cap.pipeline.engine.stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.stripe import Stripe
from a2cap.pipeline.extraction.images import ImageFiles, Source, UnlistedImages
from a2cap.pipeline.extraction.imported import ImportedFeatures
from a2cap.pipeline.extraction.inputs import ExtractionInputs
from a2cap.pipeline.stages import (
    evaluate,
    extract,
    preprocess,
    train_detector,
    train_scst,
)
from a2cap.pipeline.stages import train_xe as train
from a2cap.pipeline.training.continuation import continued
from a2cap.pipeline.training.detector.data import image_files, input_files
from a2cap.pipeline.weights.captioners import captioner_folder
from a2cap.pipeline.weights.detectors import weights_file


class UnfinishedStageError(A2Error):
    """Raised if a stage needs the result of a stage that is not finished."""

    def __init__(self, stage: str, waits_for: str) -> None:
        command = {
            TRAIN_XE: "train",
            TRAIN_SCST: "train",
            TRAIN_DETECTOR: "detector train",
        }.get(waits_for, waits_for)
        super().__init__(
            f'{stage} needs {waits_for}, which is not finished; run "a2 {command}" or "a2 run"'
        )
        self.waits_for = waits_for


@dataclass(frozen=True)
class Status:
    """Status of a stage. state: done, running, partial, to run, or waiting; why: of a run, or of
    the rounding by which features of a run would differ from those that are done."""

    stage: str
    state: str
    directory: Path | None
    why: list[str]


class Experiment:
    """The stages of one experiment over one artifacts folder."""

    def __init__(self, config: Config, artifacts: Path) -> None:
        self.config = config
        self.artifacts = artifacts
        self._hashes = HashCache(artifacts / "hashes.sqlite")
        self._outcomes: dict[str, Outcome] = {}

    @property
    def names(self) -> list[str]:
        """Names of the stages, in the order in which they run."""
        return [EXTRACT, PREPROCESS, *self.training, EVALUATE]

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

    @property
    def training(self) -> list[str]:
        """Names of the training stages; the last one trains the captioner that is evaluated."""
        return [TRAIN_XE, TRAIN_SCST] if self.config.scst.epochs else [TRAIN_XE]

    def phase(self, name: str) -> list[str]:
        """Return the training stages of a phase: xe, scst or all; ConfigError if it has none."""
        if name == "scst" and TRAIN_SCST not in self.training:
            raise ConfigError(
                "self-critical training is disabled: scst.epochs is 0; set it to 1 or more"
            )
        return {"xe": [TRAIN_XE], "scst": [TRAIN_SCST]}.get(name, self.training)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._hashes.close()

    def stage(self, name: str) -> PreparedStage:
        """Build a stage; raise UnfinishedStageError if a stage that it reads is not finished."""
        build: dict[str, Callable[[], PreparedStage]] = {
            EXTRACT: self._extract,
            PREPROCESS: self._preprocess,
            TRAIN_XE: self._train,
            TRAIN_SCST: self._train_scst,
            EVALUATE: self._evaluate,
            TRAIN_DETECTOR: self._train_detector,
        }
        return build[name]()

    def run(self, name: str, *, force: bool = False, output: Path | None = None) -> Outcome:
        """Run a stage unless its result exists, in the artifacts folder or at `output`."""
        _require_replaceable(output, name)
        stage = self.stage(name)
        outcome = run_stage(
            stage, self._paths(stage, output), resolved_config=self.config.to_yaml(), force=force
        )
        self._outcomes[name] = outcome
        return outcome

    def run_stripe(self, stripe: Stripe, *, output: Path | None = None) -> StripeOutcome:
        """Run a stripe of extraction; the process that finds all shards done publishes it."""
        _require_replaceable(output, EXTRACT)
        stage = self.stage(EXTRACT)
        paths = self._paths(stage, output)
        return run_stripe(stage, paths, stripe, resolved_config=self.config.to_yaml())

    def _paths(self, stage: PreparedStage, output: Path | None) -> StagePaths:
        return StagePaths(output) if output else StagePaths.in_artifacts(self.artifacts, stage)

    def status(self, name: str) -> Status:
        """Return the status of a stage and the reasons for a run."""
        try:
            stage = self.stage(name)
        except UnfinishedStageError as error:
            return Status(name, "waiting", None, [f"waits for {error.waits_for}"])
        paths = StagePaths.in_artifacts(self.artifacts, stage)
        locks = [paths.lock, *paths.part_locks()]
        holders = [lock_holder(lock) for lock in locks if is_locked(lock)]
        if holders:
            return Status(name, "running", paths.partial, holders)
        paths = resumed(stage, paths)
        if paths.forced:
            return Status(name, "partial", paths.partial, ["interrupted run with --force"])
        if finished(stage, paths) is not None:
            return Status(name, "done", paths.final, self._rounding(name, paths.final))
        why = nearest_difference(self.artifacts / name, stage.made_from) or ["no earlier result"]
        if paths.partial.is_dir():
            return Status(name, "partial", paths.partial, why)
        return Status(name, "to run", None, [*why, stage.note] if stage.note else why)

    def _rounding(self, name: str, result: Path) -> list[str]:
        """Return what makes features that are extracted now differ from a result by rounding."""
        if name != EXTRACT or self.imported is not None:
            return []
        threads = self.config.runtime.threads
        changed = ExtractorRecord.read(result / EXTRACTOR).changed_libraries(threads=threads)
        return [f"{', '.join(changed)}: only rounding would differ"] if changed else []

    def result(self, name: str, *, needed_by: str) -> Outcome:
        """Return the finished result of a stage; raise UnfinishedStageError if it has none."""
        # built once, so that later stages of this command need not digest its inputs again
        if name not in self._outcomes:
            stage = self.stage(name)
            outcome = finished(stage, StagePaths.in_artifacts(self.artifacts, stage))
            if outcome is None:
                raise UnfinishedStageError(needed_by, name)
            self._outcomes[name] = outcome
        return self._outcomes[name]

    def _results(self, reader: str, **stages: str) -> dict[str, Input]:
        """Return the results that a stage reads, by the name of the input."""
        found = {name: self.result(stage, needed_by=reader) for name, stage in stages.items()}
        return {name: result_input(one.directory, one.manifest) for name, one in found.items()}

    def _file(self, path: Path | None, field: str) -> Input:
        """Return the file that a config field names, with its digest."""
        return self._hashes.file(require_file(path, field), what=f"file of {field}")

    def _optional_files(self, section: str, **paths: Path | None) -> dict[str, Input]:
        """Return those files of a section that are set, by field."""
        named = {field: path for field, path in paths.items() if path is not None}
        return {field: self._file(path, f"{section}.{field}") for field, path in named.items()}

    def _captioner(self, folder: Path, field: str) -> Input:
        named = captioner_folder(folder, field)
        # without the manifest, so that a captioner may be copied to another folder
        found = {name: self._hashes.file(named / name, what=name) for name in CAPTIONER}
        digest = captioner_digest({name: file.digest for name, file in found.items()})
        files = {path: known for file in found.values() for path, known in file.files.items()}
        return Input(named, digest, files)

    @cached_property
    def imported(self) -> ImportedFeatures | None:
        """The features of `data.features`, None if regions are extracted."""
        data = self.config.data
        if data.features is None:
            return None
        image_ids = self._annotated or set()
        return ImportedFeatures(data.features, data.sizes, image_ids, self.config.extract)

    @cached_property
    def images(self) -> dict[str, Path | None]:
        """Image id -> file of each image, None if it is missing or not a file of its own.

        The images are those of the annotations if they are set, else all of `data.images`.
        """
        if self.config.data.images is None and self.imported is not None:
            return dict.fromkeys(self.imported.image_ids)
        if image_source(self.config.data.images) is not None:
            return dict.fromkeys(self._annotated or ())
        folder = require_image_folder(self.config.data.images)
        if self.config.data.annotations is None:
            return dict(find_images(folder, self.config.data.ids))
        named = {image.image_id: image.file for image in self.annotations.images}
        files = resolve_files(named, folder, self.config.data.ids)
        return {image_id: files.get(image_id) for image_id in named}

    @cached_property
    def annotations(self) -> Annotations:
        """Content of the annotation file."""
        data = self.config.data
        path = require_annotations(data.annotations)
        return read_annotations(path, split_list=data.split_list, split=data.split, rule=data.ids)

    @property
    def _annotated(self) -> set[str] | None:
        """Ids of the annotated images, None without annotations."""
        if self.config.data.annotations is None:
            return None
        return {image.image_id for image in self.annotations.images}

    def _images(self) -> tuple[UnlistedImages, Input]:
        """Return the images to extract, and their digest."""
        source = image_source(self.config.data.images)
        if source is not None:
            return Source(source, self._annotated), self._source_images(source)
        found = self._hashes.images(require_image_folder(self.config.data.images), self.images)
        unreadable = {path for path in self.images.values() if path and path not in found.files}
        return ImageFiles(self.images, unreadable), found

    def _import(self, imported: ImportedFeatures) -> PreparedStage:
        names = "\n".join(sorted(imported.image_ids))
        inputs = {
            "features": self._hashes.images(imported.path, imported.files()),
            # images whose features are missing are rejected
            "images": Input(imported.path, hashlib.sha256(names.encode()).hexdigest()),
        }
        if imported.sizes is not None:
            inputs["sizes"] = self._hashes.images(imported.sizes, imported.size_files())
        return extract.import_stage(imported, inputs=inputs)

    def _extract(self) -> PreparedStage:
        if self.imported is not None:
            return self._import(self.imported)
        config, boxes = self._computed(self.config.extract), None
        weights = self._file(weights_file(config), "extract.weights")
        if config.boxes == "given":
            boxes = self._file(self.config.data.instances, "data.instances")
        boxes_file = None if boxes is None else boxes.path
        runtime = self.config.runtime
        files, images = self._images()
        inputs = ExtractionInputs(config, weights.path, files, boxes_file, runtime)
        return extract.extract_stage(inputs, weights=weights, images=images, boxes=boxes)

    def _preprocess(self) -> PreparedStage:
        data = self.config.data
        path = data.annotations
        if path is not None and path.is_dir():
            files = {str(file): path / file.with_suffix(".txt") for file in list_images(path)}
            inputs = {"annotations": self._hashes.images(path, files)}
        elif is_source(path):
            inputs = {"annotations": self._source(path)}
        else:
            inputs = {"annotations": self._file(path, "data.annotations")}
        if data.split_list is not None and data.split_list.is_dir():
            lists = {file.name: file for file in sorted(data.split_list.glob("*.txt"))}
            inputs["split_list"] = self._hashes.images(data.split_list, lists)
        else:
            inputs |= self._optional_files("data", split_list=data.split_list)
        return preprocess.preprocess_stage(
            self.config.preprocess,
            inputs=inputs,
            read=lambda: self.annotations,
            rules=data.model_dump(include={"split", "ids"}, exclude_defaults=True),
        )

    def _source(self, path: Path | None) -> Input:
        """Return tars or Parquet files with their digest; of URLs, that of their versions."""
        names = [container.name for container in open_source(str(path)).containers]
        if any("://" in name for name in names):
            versions = "\n".join(map(version_of, names))
            return Input(Path(str(path)), hashlib.sha256(versions.encode()).hexdigest())
        files = {f"{number:09}": Path(name) for number, name in enumerate(names)}
        return self._hashes.images(Path(str(path)), files)

    def _source_images(self, text: str) -> Input:
        """Return the images of tars, Parquet files or a list with a digest over the wanted ids."""
        found = self._source(Path(text))
        lists = [one for one in open_source(text).containers if isinstance(one, ImageList)]
        files = {name: file for one in lists for name, file in one.local_files().items()}
        listed = self._hashes.images(Path(text), files)
        wanted = "\n".join(sorted(self._annotated or ()))
        content = f"{found.digest}\n{listed.digest}\n{wanted}"
        digest = hashlib.sha256(content.encode()).hexdigest()
        return Input(Path(text), digest, {**found.files, **listed.files})

    def _computed(self, config: ExtractConfig) -> ExtractConfig:
        """Return the configuration with the precision that `auto` is on this processor."""
        precision = config.precision_in_key
        if precision == "auto":
            from a2cap.extract.detector.precision import resolve_precision  # imports torch
            from a2cap.pipeline.runtime.device import prepare_device

            precision = resolve_precision(config, prepare_device(self.config.runtime))
        return config.model_copy(update={"precision": precision})

    def _train_detector(self) -> PreparedStage:
        """Build the training of a detector, whose output is a file for `extract.weights`."""
        config = self.config.detector
        files: dict[str, Path | None] = dict(input_files(config))
        inputs = self._optional_files("detector", **files, start=config.start)
        for field, images in image_files(config).items():
            inputs[field] = self._hashes.images(getattr(config, field), images)
        stage = train_detector.train_detector_stage(
            config, inputs=inputs, runtime=self.config.runtime
        )
        folder = self.artifacts / TRAIN_DETECTOR
        return continued(stage, folder, config, score="AP50", rate_falls=True)

    def _train(self) -> PreparedStage:
        config = self.config
        inputs = self._results(TRAIN_XE, features=EXTRACT, captions=PREPROCESS)
        if config.train.start is not None:
            inputs["start"] = self._captioner(config.train.start, "train.start")
        stage = train.train_stage(config.train, config.model, inputs=inputs, runtime=config.runtime)
        rate_falls = config.train.rate_depends_on_epochs
        folder = self.artifacts / TRAIN_XE
        return continued(stage, folder, config.train, score="CIDEr", rate_falls=rate_falls)

    def _train_scst(self) -> PreparedStage:
        inputs = self._results(TRAIN_SCST, features=EXTRACT, captions=PREPROCESS, model=TRAIN_XE)
        config = self.config.scst
        stage = train_scst.train_scst_stage(config, inputs=inputs, runtime=self.config.runtime)
        return continued(stage, self.artifacts / TRAIN_SCST, config, score="CIDEr")

    def _evaluate(self) -> PreparedStage:
        config, data = self.config.evaluate, self.config.data
        # without attention there is no grounding, and the boxes are not read
        instances = None if config.attention == "none" else data.instances
        inputs = self._results(
            EVALUATE, features=EXTRACT, captions=PREPROCESS, model=self.training[-1]
        )
        for number, folder in enumerate(config.ensemble, start=2):
            inputs[f"{FURTHER_MODEL}{number}"] = self._captioner(folder, "evaluate.ensemble")
        inputs |= self._optional_files("evaluate", baseline=config.baseline)
        inputs |= self._optional_files(
            "data", instances=instances, word_groups=data.word_groups, scenes=data.scenes
        )
        return evaluate.evaluate_stage(
            config, inputs=inputs, images=self.images, runtime=self.config.runtime
        )


def captioner_digest(outputs: Mapping[str, str]) -> str:
    """Return the digest of a captioner as part of an ensemble, from the digests of its files."""
    return hashlib.sha256("\n".join(outputs[name] for name in CAPTIONER).encode()).hexdigest()


def _require_replaceable(output: Path | None, stage: str) -> None:
    """Raise InputError if `output` exists and is not a result of this stage."""
    if output is None or not output.exists():
        return
    try:
        made = read_manifest(output).made_from if output.is_dir() else None
    except A2Error:
        made = None
    if made is None or made.stage != stage:
        raise InputError(
            f"output {str(output)!r} exists and is not a result of {stage}; "
            "name a path that does not exist"
        )
