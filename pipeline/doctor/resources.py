"""Whether disk and memory hold what stages will take, reckoned before a model is loaded.

Refused is only what cannot go well: features are reckoned at their fewest, and what an unfinished
run has written already counts as free.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, StoreError
from a2cap.data.files.paths import require_file
from a2cap.pipeline.doctor.clean import size_of
from a2cap.pipeline.engine.artifacts import (
    EXTRACT,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_XE,
    VOCABULARY,
)
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.runtime.launch import launch
from a2cap.pipeline.runtime.memory import available_memory
from a2cap.pipeline.stages import preprocess
from a2cap.pipeline.weights.detectors import weights_file

if TYPE_CHECKING:
    import torch

    from a2cap.pipeline.experiment import Experiment

T = TypeVar("T")


class NotKnownYet(Exception):
    """What is needed follows from something that is a problem of its own."""


class Resources:
    """Disk and memory of the stages of a experiment.

    output: the place of the result, where that is not in the artifacts.
    """

    def __init__(self, experiment: "Experiment", *, output: Path | None = None) -> None:
        self._experiment = experiment
        self._config = experiment.config
        self._output = output

    def for_features(self) -> str:
        """The disk that features take; StoreError where the fewest do not fit."""
        least, most = self._feature_bytes()
        free = self._free(EXTRACT)
        if least > free and least > free + self._begun(EXTRACT):
            raise StoreError(
                f"disk too small for the features: at least {_gb(least)} are needed, "
                f"{_gb(free)} are free; make room, or lower extract.min_regions"
            )
        return f"features take {_gb(least)} to {_gb(most)}, {_gb(free)} are free"

    def for_checkpoints(self, stage: str, *, after: Sequence[str] = ()) -> str:
        """The disk that a stage of training takes; A2Error where it does not fit.

        after: stages that will take their part before.
        """
        needed = self._checkpoint_bytes(stage)
        parts = {
            name: self._feature_bytes()[0] if name == EXTRACT else self._checkpoint_bytes(name)
            for name in after
        }
        free = self._free(stage) - sum(parts.values())
        if needed > free:
            free += self._begun(stage)
            free += sum(min(part, self._begun(name)) for name, part in parts.items())
        if needed > free:
            raise A2Error(
                f"disk too small for checkpoints: {_gb(needed)} are needed, "
                f"{_gb(max(free, 0))} are left by then; make room"
            )
        return f"checkpoints take {_gb(needed)}, {_gb(free)} are left by then"

    def _checkpoint_bytes(self, stage: str) -> int:
        from a2cap.pipeline.doctor.estimates import detector_training_disk, training_disk

        if stage == TRAIN_DETECTOR:
            return detector_training_disk(self._config.detector)
        return training_disk(self._parameters)

    def for_detector(self) -> str:
        """The memory that describing an image takes; A2Error where it does not fit."""
        from a2cap.pipeline.doctor.estimates import detector_memory

        config = self._config.extract
        width = _known(lambda: self.feature_width)
        needed = detector_memory(config, weights_file(config), width)
        return self._fits(needed, "the detector", "lower extract.roi_size or extract.max_side")

    def for_training(self) -> str:
        """The memory that a step of training takes; A2Error where it does not fit.

        On a CPU the processes of torchrun on this machine share it.
        """
        from a2cap.pipeline.doctor.estimates import training_memory

        return self._fits(self._of_all(training_memory), "training", "raise train.accumulate")

    def for_self_critical(self) -> str:
        """The memory that a step of self-critical training takes; A2Error where it does not fit."""
        from a2cap.pipeline.doctor.estimates import self_critical_memory

        needed = self._of_all(self_critical_memory)
        return self._fits(needed, "self-critical training", "raise scst.accumulate")

    def _of_all(self, step: Callable[..., int]) -> int:
        """What a step takes of the device, of all processes of torchrun that share it."""
        started = launch()
        needed = step(
            self._config,
            parameters=self._parameters,
            vocabulary=self._vocabulary,
            processes=started.ranks,
        )
        return needed * (started.local_ranks if self._device.type == "cpu" else 1)

    @cached_property
    def feature_width(self) -> int:
        """F, the numbers per region."""
        from a2cap.pipeline.doctor.estimates import feature_width

        return feature_width(self._config.extract, weights_file(self._config.extract))

    @cached_property
    def given_regions(self) -> int:
        """Given boxes of all images that have a file; InputError where an image has none."""
        from a2cap.pipeline.extraction.extract import given_boxes

        path = require_file(self._config.data.instances, "data.instances")
        images = _known(lambda: self._experiment.images)
        given = given_boxes(path, images) or {}
        return sum(len(given[name]) for name, file in images.items() if file is not None)

    def folder(self, stage: str) -> Path:
        """The folder nearest to where a stage's result will lie that is there already."""
        place = self._experiment.artifacts / stage / "key" if self._output is None else self._output
        return next(folder for folder in place.absolute().parents if folder.is_dir())

    def _fits(self, needed: int, what: str, remedy: str) -> str:
        available = self._available()
        if available is None:
            return f"{what} takes about {_gb(needed)}; the system does not say what it has"
        if needed > available:
            raise A2Error(
                f"memory too small for {what}: about {_gb(needed)} are needed, "
                f"{_gb(available)} are available; end other programs, or {remedy}"
            )
        return f"{what} takes about {_gb(needed)}, {_gb(available)} are available"

    def _available(self) -> int | None:
        """Bytes that the device has left."""
        import torch

        device = self._device
        return available_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]

    @cached_property
    def _device(self) -> "torch.device":
        from a2cap.pipeline.runtime.device import prepare_device

        return _known(lambda: prepare_device(self._config.runtime))

    @cached_property
    def _vocabulary(self) -> int:
        """V, as preprocessing has found or will find it."""
        try:
            done = self._experiment.result(PREPROCESS, needed_by=TRAIN_XE)
            return len(Vocabulary.load(done.directory / VOCABULARY))
        except A2Error:
            config = self._config.preprocess
            make = preprocess.make_vocabulary
            return len(_known(lambda: make(self._experiment.annotations, config)))

    @cached_property
    def _parameters(self) -> int:
        from a2cap.pipeline.doctor.estimates import captioner_parameters

        width = _known(lambda: self.feature_width)
        return captioner_parameters(self._config.model, width=width, vocabulary=self._vocabulary)

    def _feature_bytes(self) -> tuple[int, int]:
        """Fewest and most bytes of all features."""
        config = self._config.extract
        each = _known(lambda: self.feature_width) * np.dtype(config.dtype).itemsize
        if config.boxes == "given":
            count = _known(lambda: self.given_regions)
            return count * each, count * each
        images = _known(lambda: self._experiment.images)
        count = sum(file is not None for file in images.values())
        least, most = config.region_counts
        return least * count * each, most * count * each

    def _begun(self, name: str) -> int:
        """Bytes that an unfinished run of a stage has written."""
        if self._output is not None:
            return size_of(StagePaths(self._output).partial)
        try:
            stage = self._experiment.stage(name)
        except A2Error:
            return 0
        return size_of(StagePaths.in_artifacts(self._experiment.artifacts, stage).partial)

    def _free(self, stage: str) -> int:
        return shutil.disk_usage(self.folder(stage)).free


def _known(find: Callable[[], T]) -> T:
    """What `find` returns; NotKnownYet where that is a problem, which is told where it belongs."""
    try:
        return find()
    except A2Error as error:
        raise NotKnownYet("told once the other problems are solved") from error


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
