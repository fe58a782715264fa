"""Named points at which a run is killed: before, halfway through, or after a call.

The program is not instrumented. In a forked process a named function is replaced, in every module
that holds it, by one that counts its calls and kills the process at the chosen call.
"""

import functools
import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Moment = Literal["before", "halfway", "after"]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Point:
    """A function, as `module:name` or `module:Class.name`.

    writes, removes: position of the argument that names the file it writes or the folder it
    removes; such a call can also be interrupted halfway.
    """

    target: str
    writes: int | None = None
    removes: int | None = None

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Return when a call of this function can be interrupted."""
        if self.writes is None and self.removes is None:
            return ("before", "after")
        return ("before", "halfway", "after")


@dataclass(frozen=True)
class Fault:
    """A kill at the `call`-th call of a point's function, counted from 1."""

    point: Point
    moment: Moment
    call: int

    def __str__(self) -> str:
        return f"{self.moment} call {self.call} of {self.point.target}"


_ENGINE = (
    Point("a2cap.data.files.atomic:write_durably"),
    Point("a2cap.data.files.atomic:rename_durably"),
    Point("a2cap.data.files.atomic:discard"),
    Point("a2cap.data.files.sealed_folder:write_manifest"),
    Point("a2cap.pipeline.engine.run:prepare"),
    Point("a2cap.pipeline.engine.run:_publish"),
    Point("a2cap.pipeline.engine.events:EventLog.write"),
    Point("a2cap.pipeline.engine.hash_cache:HashCache.images"),
    Point("os:fsync"),
    Point("pathlib:Path.mkdir"),
    Point("pathlib:Path.unlink"),
    Point("pathlib:Path.rename"),
    Point("pathlib:Path.replace"),
    Point("shutil:rmtree", removes=0),
)

_JSON = Point("a2cap.data.files.json_file:write_json", writes=0)

_ANY_TRAINING = (
    *_ENGINE,
    _JSON,
    Point("a2cap.pipeline.training.checkpoints:Checkpoints.save"),
    Point("a2cap.pipeline.training.checkpoints:Checkpoints.drop_old"),
    Point("a2cap.data.files.tensors:save_tensors", writes=0),
    Point("torch:save"),
    Point("a2cap.pipeline.training.training_parts:TrainingRecord.epoch"),
    Point("a2cap.pipeline.training.loop:TrainingLoop._end_epoch"),
)

_CAPTIONER_TRAINING = (
    *_ANY_TRAINING,
    Point("a2cap.pipeline.training.captioner.caption_validation:CaptionValidation.figures"),
    Point("a2cap.pipeline.captioning.saved_captioner:save_model"),
    Point("shutil:copyfile", writes=1),
)

_SHARD = (
    Point("a2cap.extract.extractor:Extractor.start"),
    Point("a2cap.data.features.writer:FeatureWriter.add"),
    Point("a2cap.data.features.writer:FeatureWriter._commit"),
    Point("a2cap.data.features.writer:FeatureWriter.seal"),
    Point("a2cap.data.features.writer:FeatureWriter.close"),
    Point("a2cap.data.files.sealed_folder:write_manifest"),
)

POINTS: Mapping[str, tuple[Point, ...]] = {
    **dict.fromkeys(("extract", "stripes"), (*_ENGINE, _JSON, *_SHARD)),
    "ray": _SHARD,
    "preprocess": (
        *_ENGINE,
        _JSON,
        Point("a2cap.data.annotations.read:read_annotations"),
        Point("a2cap.data.captions.vocabulary:Vocabulary.save", writes=1),
        Point("a2cap.data.captions.caption_file:write_captions", writes=0),
        Point("a2cap.pipeline.metrics.tokenization:tokenize"),
        Point("a2cap.data.captions.document_frequencies:DocumentFrequencies.save", writes=1),
    ),
    "train-xe": (
        *_CAPTIONER_TRAINING,
        Point("a2cap.pipeline.training.captioner.cross_entropy:CrossEntropyUpdater.step"),
    ),
    "train-scst": (
        *_CAPTIONER_TRAINING,
        Point("a2cap.model.self_critical.rollouts:generate_rollouts"),
        Point("a2cap.pipeline.training.captioner.self_critical:SelfCriticalUpdater.step"),
    ),
    "evaluate": (
        *_ENGINE,
        Point("a2cap.pipeline.evaluation.results:write_results", writes=0),
        Point("a2cap.pipeline.metrics.meteor.meteor:meteor_statistics"),
        Point("a2cap.data.captions.attention_file:write_attention", writes=0),
        Point("a2cap.pipeline.evaluation.metrics_file:write_scores"),
        Point("a2cap.pipeline.report.report:write_report", writes=0),
    ),
    "train-detector": (
        *_ANY_TRAINING,
        Point("a2cap.extract.weights.load:save_detector", writes=1),
        Point("a2cap.extract.image:read_image"),
        Point("a2cap.pipeline.training.detector.labelled_images:read_detector_data"),
        Point("a2cap.pipeline.training.detector.train:DetectorUpdater.step"),
        Point("a2cap.pipeline.training.detector.validation:DetectorValidation.figures"),
        Point("a2cap.pipeline.training.detector.validation:detector_figures"),
    ),
    "train-encoder": (
        *_ANY_TRAINING,
        Point("a2cap.extract.trainable_encoder:TrainableEncoder.save", writes=1),
        Point("a2cap.pipeline.training.encoder.captioned_images:SquareImages.read"),
        Point("a2cap.pipeline.training.encoder.train:EncoderUpdater.step"),
        Point("a2cap.pipeline.training.encoder.validation:EncoderValidation.figures"),
    ),
}
"""Stage -> points at which its runs are killed."""

_BEFORE_THE_WORK = {point.target for point in _ENGINE} - {
    "a2cap.pipeline.engine.events:EventLog.write"
}


def points_of_work(stage: str) -> list[Point]:
    """Return the points that a run reaches only after it has digested its inputs."""
    return [point for point in POINTS[stage] if point.target not in _BEFORE_THE_WORK]


def wrap(target: str, make: Callable[[Function], Function]) -> None:
    """Replace a function by `make(function)` where it is defined and in every a2cap module."""
    home, _, path = target.partition(":")
    owner: object = importlib.import_module(home)
    *classes, name = path.split(".")
    for inner in classes:
        owner = getattr(owner, inner)
    original = getattr(owner, name)
    wrapped = functools.wraps(original)(make(original))
    for holder in {id(user): user for user in (owner, *_importers(original, name))}.values():
        setattr(holder, name, wrapped)


def _importers(original: Function, name: str) -> Iterator[ModuleType]:
    for module in list(sys.modules.values()):
        if module.__name__.startswith("a2cap.") and vars(module).get(name) is original:
            yield module


def observe(
    target: str,
    *,
    before: Callable[..., Any] = lambda *_: None,
    after: Callable[..., None] = lambda *_: None,
) -> None:
    """Call `before` and `after` around each call; `after` takes the result of `before` first."""

    def make(original: Function) -> Function:
        def call(*arguments: Any, **options: Any) -> Any:
            noted = before(*arguments)
            result = original(*arguments, **options)
            after(noted, *arguments)
            return result

        return call

    wrap(target, make)


def count_calls(stage: str) -> Counter[str]:
    """Count the calls of every point of a stage in the returned counter."""
    calls: Counter[str] = Counter()
    for point in POINTS[stage]:
        observe(point.target, before=lambda *_, target=point.target: calls.update([target]))
    return calls


def install(fault: Fault, act: Callable[[], object] | None = None) -> None:
    """Make this process kill itself, as by kill -9, at the fault, or do `act` before its call."""

    def make(original: Function) -> Function:
        calls = 0

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fault.call and act is not None:
                act()
            if calls != fault.call or act is not None:
                return original(*arguments, **options)
            if fault.moment == "before":
                die()
            if fault.moment == "halfway" and fault.point.removes is not None:
                _remove_half(Path(arguments[fault.point.removes]))
                die()
            original(*arguments, **options)
            if fault.moment == "halfway" and fault.point.writes is not None:
                _halve(Path(arguments[fault.point.writes]))
            return die()

        return call

    wrap(fault.point.target, make)


def die() -> None:
    """End this process without cleanup, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def _halve(path: Path) -> None:
    """Truncate a file as if the process had been killed while writing it."""
    os.truncate(path, path.stat().st_size // 2)


def _remove_half(folder: Path) -> None:
    """Remove some files as if the process had been killed while removing the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files[: (len(files) + 1) // 2]:
        os.unlink(path)  # noqa: PTH108 - Path.unlink may be a point itself
