"""A run of stages that is about to begin, and what it needs, before a model is loaded.

Only certain failures are rejected: a feature store is estimated at its minimum size, and the files
of an unfinished run count as free space. Declarations of stages name this module for types alone,
because it imports torch.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Protocol

import torch

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import Vocabulary, make_vocabulary
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.paths import require_folder, size_of
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.data.identities import shared_images
from a2cap.data.sources.open_source import image_source, open_source
from a2cap.extract.grid import check_grid_weights, grid_width, load_grid_weights
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import CAPTIONS, EXTRACT, FEATURES, PREPROCESS, VOCABULARY
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.progress import format_bytes
from a2cap.pipeline.engine.status import Status
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.memory import available_memory
from a2cap.pipeline.runtime.rank_group import process_rank
from a2cap.pipeline.stages.checks import Check, Doubt, StatedDoubt, UnknownRequirement, known
from a2cap.pipeline.stages.estimates import (
    captioner_parameters,
    detector_memory,
    detector_training_disk,
    encoder_memory,
    feature_width,
    step_memory,
)
from a2cap.pipeline.stages.input_files import ExperimentFiles
from a2cap.pipeline.training.checkpoints import training_disk
from a2cap.pipeline.training.encoder.objectives import trained_parameters
from a2cap.pipeline.weights.detectors import weights_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checked:
    """A checked requirement of a stage.

    state: "ok", "warning", "problem", or "unknown" if another problem has to be fixed first.
    text: what was found, or the text of the problem, which ends in its remedy.
    """

    stage: str
    need: str
    state: str
    text: str
    problem: A2Error | None = None


class CheckedStage(Protocol):
    """The checks of a stage."""

    always: ClassVar[Collection[str]]
    """Needs that are checked whenever a command needs the stage, although its result exists."""

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold if the stage has to run, by need."""


class Stages(Protocol):
    """The stages of an experiment, and their results as far as they exist."""

    config: Config
    files: ExperimentFiles

    @property
    def declared(self) -> Mapping[str, CheckedStage]:
        """The declarations of stages by name."""

    def stage(self, name: str) -> PreparedStage:
        """Return a stage with its inputs; raise A2Error if it cannot run yet."""

    def status(self, name: str) -> Status:
        """Return the status of a stage."""

    def folder_of(self, stage: str) -> Path | None:
        """Return the folder of a stage's result, None if it does not exist."""


class Plan:
    """A run of stages that is about to begin.

    force: run them although their results exist; output: path of the result, if it is not in the
    artifacts folder.

    Its methods are the requirements that stages share. Each returns what it found, or raises the
    problem with its remedy; a stage's `checks` choose among them, and `check_stages` calls them all
    before the first stage runs, so that all problems are reported at once.
    """

    def __init__(self, stages: Stages, *, force: bool = False, output: Path | None = None) -> None:
        self.stages, self.config, self.files = stages, stages.config, stages.files
        self.force, self.output = force, output
        self._planned: dict[str, int] = {}  # bytes that the stages so far will write
        self._pending: dict[str, bool] = {}

    def is_pending(self, stage: str) -> bool:
        """Return True if the stage has to run, or if that is not known yet."""
        if self.force:
            return True
        if self.output is not None:
            return not self.output.exists()
        if not any((self.files.artifacts / stage).glob("*/")):
            return True  # known without the digests of all images, which can take minutes
        if stage not in self._pending:
            try:
                self._pending[stage] = self.stages.status(stage).state != "done"
            except A2Error:  # reported by a check of the stage
                self._pending[stage] = True
        return self._pending[stage]

    def images(self) -> str:
        """Check that the folder exists and that no more images are missing than may be skipped."""
        if self.config.data.features is not None and self.config.data.images is None:
            return "none: the report shows no images"
        source = image_source(self.config.data.images)
        if source is not None:
            open_source(source)  # finds missing files; to list those inside takes long
            return f"those of {source}"
        images = self.files.images
        # a wrong folder deserves another message than eleven bad images of one that is right
        missing = [name for name in sorted(images) if images[name] is None]
        if len(missing) == len(images):
            folder = str(require_folder(self.config.data.images, "data.images"))
            raise InputError(
                f"none of the {len(images):,} images has a file in {folder!r}; check data.images"
            )
        skipped = [SkippedItem(name, "image file not found") for name in missing]
        check_skip_limit(skipped, len(images), "images")
        if missing:
            file = self.files.named.get(missing[0], missing[0])
            return Doubt(
                f"{len(missing):,} of {len(images):,} images have no file in "
                f"{str(self.config.data.images)!r}, such as {file!r}; "
                "add them, else they are left out"
            )
        return f"{len(images):,}, each with a file"

    def device(self) -> str:
        """Check that torch has the device."""
        return str(prepare_device(self.config.runtime))

    def memory(self, needed: int, what: str, remedy: str, *, is_halved: bool = False) -> str:
        """Check that a model fits into the device's free memory.

        is_halved: a single GPU without the memory for a batch computes its halves.
        """
        device = known(lambda: prepare_device(self.config.runtime))
        # an Apple GPU shares the machine's memory
        is_cuda = device.type == "cuda"
        available = torch.cuda.mem_get_info(device)[0] if is_cuda else available_memory()
        if available is None:
            return f"{what} takes about {format_bytes(needed)}; the system hides its free memory"
        if needed > available and not (is_halved and is_cuda and process_rank().ranks == 1):
            raise A2Error(
                f"memory too small for {what}: about {format_bytes(needed)} needed, "
                f"{format_bytes(available)} free; end other programs, or {remedy}"
            )
        return f"{what} takes about {format_bytes(needed)}, {format_bytes(available)} free"

    def detector_memory(self) -> str:
        """Check that the detector fits into memory."""
        config, width = self.config.extract, known(self.feature_width)
        # an encoder that is still to be trained is no larger than a network of the grid: little
        size = 0 if self.config.trains_encoder else weights_file(config).stat().st_size
        needed = detector_memory(config, size, width)
        return self.memory(needed, "the detector", "lower extract.roi_size or extract.max_side")

    def training(
        self, stage: str, tokens: Callable[[Config, int], int], what: str, remedy: str
    ) -> dict[str, Check]:
        """Return the checks of a captioner's training: device, memory of a step, and checkpoints.

        tokens: returns those of a step in the memory of each of so many ranks.
        """

        def needed(ranks: int) -> int:
            return step_memory(
                self.config,
                tokens=tokens(self.config, ranks),
                parameters=self.parameters,
                vocabulary=self.vocabulary_size,
            )

        return {
            "device": self.device,
            "memory": lambda: self._step(needed, what, remedy),
            "disk": lambda: self.disk(stage, training_disk(self.parameters), "checkpoints"),
        }

    def _step(self, needed: Callable[[int], int], what: str, remedy: str) -> str:
        """Check the memory of a step of training; needed: bytes of each of so many ranks."""
        process = process_rank()
        size = needed(process.ranks)
        # the ranks on a CPU share its memory, each GPU has its own
        is_shared = known(lambda: prepare_device(self.config.runtime)).type == "cpu"
        size *= process.local_ranks if is_shared else 1
        return self.memory(size, what, remedy, is_halved=True)

    def encoder_memory(self) -> str:
        """Check that a step of the encoder's training fits into memory."""
        known(self.feature_width)  # the network has a map
        remedy = "raise encoder.accumulate, or lower encoder.batch_size or encoder.side"
        has_decoder = self.config.encoder.objective == "captions"
        vocabulary = self.vocabulary_size if has_decoder else 0
        needed = partial(encoder_memory, self.config, vocabulary=vocabulary)
        return self._step(needed, "training the encoder", remedy)

    def detector_checkpoints(self, stage: str) -> str:
        """Check that the checkpoints of a detector fit on the disk."""
        return self.disk(stage, detector_training_disk(self.config.detector), "checkpoints")

    def encoder_checkpoints(self, stage: str) -> str:
        """Check that the checkpoints of an encoder fit on the disk."""
        config, vocabulary = self.config, self.vocabulary_size
        parameters = trained_parameters(config.encoder, config.extract, vocabulary=vocabulary)
        return self.disk(stage, training_disk(parameters), "checkpoints")

    def shared_images(self) -> str:
        """Check that no photograph is in two splits, once features and captions exist."""
        extracted, preprocessed = map(self.stages.folder_of, (EXTRACT, PREPROCESS))
        if extracted is None or preprocessed is None:
            return "compared when the training begins"
        captions = CaptionFile(preprocessed / CAPTIONS)
        checksum = FeatureStore(extracted / FEATURES).checksum
        shared = shared_images(captions.splits, checksum, "features")
        return "no image is in two" if shared is None else StatedDoubt(shared)

    def shared_files(self) -> str:
        """Check that no image file is in two splits, before features are compared."""
        files = known(lambda: self.files.images) if self.config.data.images else {}
        if self.config.data.annotations is None or not any(files.values()):
            return "compared when the training begins"
        images = known(lambda: self.files.annotations).images
        splits = {
            split: [image.image_id for image in images if image.split == split]
            for split in ("train", "val", "test")
        }
        shared = shared_images(splits, self.files.repeated.get, "file")
        return "no file is in two" if shared is None else Doubt(shared)

    def feature_width(self) -> int:
        """Return the width of the features that the experiment extracts or imports."""
        if self.config.data.features is not None:
            return self.files.imported.feature_width()
        if self.config.trains_encoder:
            return grid_width(self.config.extract, self.config.encoder.side)
        return feature_width(self.config.extract, weights_file(self.config.extract))

    def grid_weights(self, path: Path) -> str:
        """Check that weights can be read, and are of the network of the grid."""
        backbone = self.config.extract.grid_backbone
        tensors = load_grid_weights(path, backbone)
        check_grid_weights(tensors, backbone, file=path.name)
        return f"{path}, {len(tensors):,} tensors"

    @cached_property
    def parameters(self) -> int:
        """Number of the captioner's parameters."""
        width, size = known(self.feature_width), self.vocabulary_size
        return captioner_parameters(self.config.model, width=width, vocabulary=size)

    @cached_property
    def vocabulary_size(self) -> int:
        """V of the preprocessed captions, else that of the annotations."""
        done = self.stages.folder_of(PREPROCESS)
        if done is not None:
            return len(Vocabulary.load(done / VOCABULARY))
        preprocess = self.config.preprocess
        return len(known(lambda: make_vocabulary(self.files.annotations.images, preprocess)))

    def disk(self, stage: str, needed: int, what: str) -> str:
        """Check that the output fits on the disk beside that of the stages before it."""
        free = shutil.disk_usage(self.folder(stage)).free - sum(self._planned.values())
        if needed > free:  # only then, because the key may need the digests of all images
            for name in (stage, *self._planned):
                free += self._unfinished_bytes(name)
        if self.is_pending(stage):
            self._planned[stage] = needed
        if needed > free:
            raise A2Error(
                f"disk too small for {what}: at least {format_bytes(needed)} needed, "
                f"{format_bytes(max(free, 0))} free after the earlier stages; free disk space"
            )
        return f"{what} take at least {format_bytes(needed)}, {format_bytes(free)} free"

    def _unfinished_bytes(self, stage: str) -> int:
        """Return the bytes that an unfinished run of a stage has written."""
        try:
            paths = (
                StagePaths(self.output)
                if self.output
                else StagePaths.in_artifacts(self.files.artifacts, self.stages.stage(stage))
            )
        except A2Error:
            return 0  # its key is not known yet, so no run of it can be unfinished
        # a run with --force resumes its own work and deletes the other
        return sum(size_of(p.partial) for p in (paths, replace(paths, forced=True)))

    def folder(self, stage: str) -> Path:
        """Return the nearest existing folder above a stage's result."""
        result = self.files.artifacts / stage / "key"
        path = result if self.output is None else self.output
        return next(folder for folder in path.absolute().parents if folder.is_dir())

    def writable_folder(self, stage: str) -> str:
        """Check that a file can be created where the result will be."""
        folder = self.folder(stage)
        # created, because permissions do not show a read-only mount, nor stop root
        try:
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError as error:
            raise A2Error(
                f"cannot write in {str(folder)!r} ({error.strerror}); "
                "fix its permissions, or name another folder"
            ) from error


def check_stages(
    stages: Stages, names: Sequence[str], *, force: bool = False, output: Path | None = None
) -> list[Checked]:
    """Check every requirement of these stages, in the order in which they run."""
    plan = Plan(stages, force=force, output=output)
    checked = []
    for name in names:
        stage, is_pending = stages.declared[name], plan.is_pending(name)
        checks: dict[str, Check] = {
            **stage.checks(plan),
            "folder": partial(plan.writable_folder, name),
        }
        for need, check in checks.items():
            is_needed = is_pending or need in stage.always
            try:
                text = check() if is_needed else "the result exists"
                state = "warning" if isinstance(text, Doubt) else "ok"
                checked.append(Checked(name, need, state, text))
            except UnknownRequirement as error:
                checked.append(Checked(name, need, "unknown", str(error)))
            except A2Error as error:
                checked.append(Checked(name, need, "problem", str(error), error))
            except OSError as error:
                reason, file = error.strerror, str(error.filename)
                problem = InputError(f"{reason}: {file!r}; check the path and its permissions")
                checked.append(Checked(name, need, "problem", str(problem), problem))
    texts = {check.text for check in checked if check.problem}
    return [check for check in checked if check.problem or check.text not in texts]


def require_runnable(
    stages: Stages, names: Sequence[str], *, force: bool = False, output: Path | None = None
) -> None:
    """Raise everything that keeps the stages from running as one error; log other doubts.

    A single problem is raised as it is. Several are one ConfigError if all are ConfigErrors, else
    one A2Error.
    """
    checks = check_stages(stages, names, force=force, output=output)
    doubts = [check.text for check in checks if check.state == "warning"]
    for doubt in dict.fromkeys(doubts):
        if not isinstance(doubt, StatedDoubt):
            logger.warning("%s", doubt)
    # keyed by text, because several stages have the same problem
    problems = {str(check.problem): check.problem for check in checks if check.problem}
    if len(problems) == 1:
        raise next(iter(problems.values()))
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        text = f"{len(problems)} problems, nothing was started:{lines}"
        all_config = all(isinstance(problem, ConfigError) for problem in problems.values())
        raise ConfigError(text) if all_config else A2Error(text)
