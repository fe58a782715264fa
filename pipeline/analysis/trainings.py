"""Finished trainings to analyse, with their inputs and evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import MANIFEST, Manifest, read_manifest, read_output
from a2cap.pipeline.engine.artifact_names import EVALUATE, EXTRACT, METRICS, PREPROCESS
from a2cap.pipeline.engine.explain import finished_results
from a2cap.pipeline.training.learning_curve import LearningCurve

_NAMES = 'name a result of "a2 train", a folder of them, or the YAML file of an experiment'


@dataclass(frozen=True)
class Run:
    """Finished training, or a model of `transformers` beside preprocessed captions.

    name: title in tables. model, features, captions: directories of results. manifest: of the
    training, or of the captions. images: image id -> file, for a model that reads no features.
    validation: best validation CIDEr of its epochs, None if it was not measured. metrics: of its
    evaluation on `evaluated_split`, empty if there is none.
    """

    name: str
    model: Path
    features: Path | None
    captions: Path
    manifest: Manifest
    validation: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluated_split: str = ""
    images: Mapping[str, Path | None] | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that an analysis reads."""
        return (self.model, self.captions, *(() if self.features is None else (self.features,)))


def read_run(name: str, model: Path, artifacts: Path, *, split: str) -> Run:
    """Return a finished training with its inputs, found by digest next to it or in `artifacts`.

    split: the split whose evaluation is preferred; the newest of several. Raises InputError if the
    features or captions that it was trained on are not found.
    """
    manifest = read_manifest(model)
    folders = list(dict.fromkeys((model.resolve().parent.parent, artifacts.resolve())))
    inputs = manifest.origin.inputs
    features = _find(folders, EXTRACT, inputs.get("features", ""), run=model)
    captions = _find(folders, PREPROCESS, inputs.get("captions", ""), run=model)
    metrics, evaluated = _evaluation(folders, manifest.digest, split)
    return Run(name, model, features, captions, manifest, _validation(model), metrics, evaluated)


def trainings_in(path: Path) -> list[Path]:
    """Return the folder itself if it is a finished training, else the trainings in it.

    Raises InputError if there are none.
    """
    if not path.is_dir():
        raise InputError(f"no such folder or file: {str(path)!r}; {_NAMES}")
    inside = (*sorted(path.iterdir()), *sorted(path.glob("train-*/*")))
    candidates = [path, *(folder for folder in inside if not folder.suffix)]
    trainings = [
        folder
        for folder in candidates
        if all((folder / name).is_file() for name in (MANIFEST, "model.safetensors"))
    ]
    if not trainings:
        raise InputError(f"no finished training in {str(path)!r}; {_NAMES}")
    return trainings


def _find(folders: Sequence[Path], stage: str, digest: str, *, run: Path) -> Path:
    for folder in folders:
        for directory, manifest in finished_results(folder / stage).items():
            if manifest.digest == digest:
                return directory
    raise InputError(
        f"result of {stage} that {str(run)!r} was trained on not found: {digest[:12]!r}; "
        "name the folder that contains it with --artifacts"
    )


def _evaluation(folders: Sequence[Path], digest: str, split: str) -> tuple[dict[str, float], str]:
    """Return metrics and split of the preferred evaluation of a training."""
    evaluations = [
        (_split_of(manifest) == split, manifest.finished, directory, _split_of(manifest))
        for folder in folders
        for directory, manifest in finished_results(folder / EVALUATE).items()
        if manifest.origin.inputs.get("model") == digest
    ]
    if not evaluations:
        return {}, ""
    # by preferred split, then by the time it finished
    _, _, directory, evaluated = max(evaluations)
    return dict(read_output(directory, METRICS)["metrics"]), evaluated


def _split_of(manifest: Manifest) -> str:
    section: Any = manifest.origin.fields.get("evaluate", {})
    return str(section.get("split", ""))


def _validation(model: Path) -> float | None:
    curve = LearningCurve.read(model)
    scores = [line["CIDEr"] for line in curve.epochs if line["epoch"]] if curve else []
    return max(scores, default=None)
