"""Disk space and memory that stages need, estimated before a model is loaded.

Only certain failures are rejected: a feature store is estimated at its minimum size, and the files
of an unfinished run count as free space.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error
from a2cap.data.files.paths import require_file, size_of
from a2cap.pipeline.engine.artifacts import (
    EXTRACT,
    PREPROCESS,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
    VOCABULARY,
)
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.extraction.inputs import check_feature_space, given_boxes
from a2cap.pipeline.runtime.launch import launch
from a2cap.pipeline.runtime.memory import available_memory
from a2cap.pipeline.stages import preprocess
from a2cap.pipeline.weights.detectors import weights_file

if TYPE_CHECKING:
    import torch

    from a2cap.pipeline.config import Config
    from a2cap.pipeline.experiment import Experiment

T = TypeVar("T")


class UnknownRequirement(Exception):
    """A requirement that cannot be computed before another problem is fixed."""


class Resources:
    """Disk space and memory of an experiment's stages.

    output: path of the result, if it is not in the artifacts folder.
    """

    def __init__(self, experiment: "Experiment", *, output: Path | None = None) -> None:
        self._experiment = experiment
        self._config = experiment.config
        self._output = output

    def check_features(self) -> str:
        """Return the disk space of the features; raise StoreError if it exceeds the free space."""
        least, most = self._feature_bytes()
        free = self._free(EXTRACT)
        if least > free:  # only then, because the stage's key needs the digests of all images
            free += self._unfinished_bytes(EXTRACT)
        return check_feature_space(least, most, free=free)

    def check_checkpoints(self, stage: str, *, after: Sequence[str] = ()) -> str:
        """Return the disk space of a stage's checkpoints; raise A2Error if it is too small.

        after: stages that write to the same disk before.
        """
        needed = self._checkpoint_bytes(stage)
        parts = {
            name: self._feature_bytes()[0] if name == EXTRACT else self._checkpoint_bytes(name)
            for name in after
        }
        free = self._free(stage) - sum(parts.values())
        if needed > free:
            free += self._unfinished_bytes(stage)
            free += sum(min(part, self._unfinished_bytes(name)) for name, part in parts.items())
        if needed > free:
            raise A2Error(
                f"disk too small for checkpoints: {_gb(needed)} needed, {_gb(max(free, 0))} free "
                "after the earlier stages; free disk space"
            )
        return f"checkpoints take {_gb(needed)}, {_gb(free)} free after the earlier stages"

    def _checkpoint_bytes(self, stage: str) -> int:
        from a2cap.pipeline.doctor.estimates import detector_training_disk, training_disk

        if stage == TRAIN_DETECTOR:
            return detector_training_disk(self._config.detector)
        return training_disk(self._parameters)

    def check_memory(self, stage: str) -> str:
        """Return the memory that a stage needs; raise A2Error if it exceeds the free memory."""
        from a2cap.pipeline.doctor import estimates

        if stage == TRAIN_XE:
            needed = self._training_bytes(estimates.training_tokens)
            return self._check_available(needed, "training", "raise train.accumulate")
        if stage == TRAIN_SCST:
            needed = self._training_bytes(estimates.self_critical_tokens)
            return self._check_available(needed, "self-critical training", "raise scst.accumulate")
        extract = self._config.extract
        width = _known(lambda: self.feature_width)
        needed = estimates.detector_memory(extract, weights_file(extract).stat().st_size, width)
        remedy = "lower extract.roi_size or extract.max_side"
        return self._check_available(needed, "the detector", remedy)

    def _training_bytes(self, tokens: "Callable[[Config, int], int]") -> int:
        """Return the bytes of a training step on one device."""
        from a2cap.pipeline.doctor.estimates import step_memory

        started = launch()
        size = {"parameters": self._parameters, "vocabulary": self._vocabulary_size}
        needed = step_memory(self._config, tokens=tokens(self._config, started.ranks), **size)
        # the ranks on a CPU share its memory, each GPU has its own
        return needed * (started.local_ranks if self._device.type == "cpu" else 1)

    @cached_property
    def feature_width(self) -> int:
        """Feature width F of a region."""
        from a2cap.pipeline.doctor.estimates import feature_width

        imported = self._experiment.imported
        if imported is not None:
            return imported.feature_width()
        return feature_width(self._config.extract, weights_file(self._config.extract))

    @cached_property
    def given_regions(self) -> int:
        """Number of given boxes of the images with a file; InputError if an image has none."""
        path = require_file(self._config.data.instances, "data.instances")
        images = _known(lambda: self._experiment.images)
        given = given_boxes(path, images) or {}
        return sum(len(given[name]) for name, file in images.items() if file is not None)

    def folder(self, stage: str) -> Path:
        """Return the nearest existing folder above a stage's result."""
        result = self._experiment.artifacts / stage / "key"
        path = result if self._output is None else self._output
        return next(folder for folder in path.absolute().parents if folder.is_dir())

    def _check_available(self, needed: int, what: str, remedy: str) -> str:
        import torch

        on_cpu = self._device.type == "cpu"
        available = available_memory() if on_cpu else torch.cuda.mem_get_info(self._device)[0]
        if available is None:
            return f"{what} takes about {_gb(needed)}; the system does not report its free memory"
        if needed > available:
            raise A2Error(
                f"memory too small for {what}: about {_gb(needed)} needed, {_gb(available)} free; "
                f"end other programs, or {remedy}"
            )
        return f"{what} takes about {_gb(needed)}, {_gb(available)} free"

    @cached_property
    def _device(self) -> "torch.device":
        from a2cap.pipeline.runtime.device import prepare_device

        return _known(lambda: prepare_device(self._config.runtime))

    @cached_property
    def _vocabulary_size(self) -> int:
        """Vocabulary size V: that of the preprocessed captions, else that of the annotations."""
        try:
            done = self._experiment.result(PREPROCESS, needed_by=TRAIN_XE)
            return len(Vocabulary.load(done.directory / VOCABULARY))
        except A2Error:
            config, make = self._config.preprocess, preprocess.make_vocabulary
            return len(_known(lambda: make(self._experiment.annotations, config)))

    @cached_property
    def _parameters(self) -> int:
        from a2cap.pipeline.doctor.estimates import captioner_parameters

        width = _known(lambda: self.feature_width)
        size = self._vocabulary_size
        return captioner_parameters(self._config.model, width=width, vocabulary=size)

    def _feature_bytes(self) -> tuple[int, int]:
        """Return the fewest and the most bytes of all features."""
        if self._experiment.imported is not None:
            return 0, 0  # a link, or a conversion whose size is not known
        config = self._config.extract
        region_bytes = _known(lambda: self.feature_width) * np.dtype(config.dtype).itemsize
        if config.boxes == "given":
            count = _known(lambda: self.given_regions)
            return count * region_bytes, count * region_bytes
        images = _known(lambda: self._experiment.images)
        count = sum(file is not None for file in images.values())
        least, most = config.region_counts  # detection decides how many, image by image
        return least * count * region_bytes, most * count * region_bytes

    def _unfinished_bytes(self, name: str) -> int:
        """Return the bytes that an unfinished run of a stage has written."""
        try:
            paths = (
                StagePaths(self._output)
                if self._output is not None
                else StagePaths.in_artifacts(
                    self._experiment.artifacts, self._experiment.stage(name)
                )
            )
        except A2Error:
            return 0  # its key is not known yet, so no run of it can be unfinished
        # a run with --force resumes its own work and deletes the other
        return sum(size_of(one.partial) for one in (paths, replace(paths, forced=True)))

    def _free(self, stage: str) -> int:
        return shutil.disk_usage(self.folder(stage)).free


def _known(find: Callable[[], T]) -> T:
    """Call `find`; raise UnknownRequirement for a problem that another check reports."""
    try:
        return find()
    except A2Error as error:
        raise UnknownRequirement("unknown until the other problems are fixed") from error


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
