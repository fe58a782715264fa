"""The finished trainings that an analysis compares, and the results that each was made of."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.engine.artifacts import EVALUATE, EXTRACT, MANIFEST, METRICS, PREPROCESS
from a2cap.pipeline.engine.manifest import Manifest, read_manifest

_NAMES = 'name a result of "a2 train", a folder of them, or the YAML file of an experiment'


@dataclass(frozen=True)
class Run:
    """One finished training.

    name: what tables call it; model, features, captions: directories of results; manifest: of the
    training; validation: best validation CIDEr of its epochs, None where it kept none; metrics: of
    an evaluation of it on `evaluated_split`, empty where there is none.
    """

    name: str
    model: Path
    features: Path
    captions: Path
    manifest: Manifest
    validation: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluated_split: str = ""


def read_run(name: str, model: Path, artifacts: Path, *, split: str) -> Run:
    """A finished training with what it read, found by digest beside it or in `artifacts`.

    split: the one whose evaluation is preferred; of equals the newest. InputError where the
    features or captions that it was trained on are nowhere.
    """
    manifest = read_manifest(model)
    places = list(dict.fromkeys((model.resolve().parent.parent, artifacts.resolve())))
    features, captions = (
        _find(places, stage, manifest.pre_image.inputs.get(given, ""), run=model)
        for stage, given in ((EXTRACT, "features"), (PREPROCESS, "captions"))
    )
    metrics, evaluated = _evaluation(places, manifest.digest, split)
    return Run(name, model, features, captions, manifest, _validation(model), metrics, evaluated)


def trainings_in(path: Path) -> list[Path]:
    """The finished training that a folder is, or those that lie in it; InputError without any."""
    if not path.is_dir():
        raise InputError(f"no such folder or file: {str(path)!r}; {_NAMES}")
    candidates = [path, *sorted(child for child in path.iterdir() if not child.suffix)]
    found = [folder for folder in candidates if _is_training(folder)]
    if not found:
        raise InputError(f"no finished training in {str(path)!r}; {_NAMES}")
    return found


def _is_training(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and (folder / "model.safetensors").is_file()


def _results(places: Sequence[Path], stage: str) -> Iterator[tuple[Path, Manifest]]:
    for place in places:
        for path in sorted((place / stage).glob(f"*/{MANIFEST}")):
            if path.parent.suffix:
                continue
            try:
                yield path.parent, read_manifest(path.parent)
            except A2Error:
                continue  # one damaged result of another run is none of this one's business


def _find(places: Sequence[Path], stage: str, digest: str, *, run: Path) -> Path:
    for directory, manifest in _results(places, stage):
        if manifest.digest == digest:
            return directory
    raise InputError(
        f"the result of {stage} that {str(run)!r} was trained on is not there: {digest[:12]!r}; "
        "name the folder that holds it with --artifacts"
    )


def _evaluation(places: Sequence[Path], digest: str, split: str) -> tuple[dict[str, float], str]:
    """Metrics and split of the evaluation to show of the training with this digest."""
    found = [
        (_split_of(manifest) == split, manifest.finished, directory, _split_of(manifest))
        for directory, manifest in _results(places, EVALUATE)
        if manifest.pre_image.inputs.get("model") == digest
    ]
    if not found:
        return {}, ""
    _, _, directory, evaluated = max(found)
    content: Any = read_json(directory / METRICS)
    return dict(content["metrics"]), evaluated


def _split_of(manifest: Manifest) -> str:
    section: Any = manifest.pre_image.params.get("evaluate", {})
    return str(section.get("split", ""))


def _validation(model: Path) -> float | None:
    path = model / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return max((float(json.loads(line)["CIDEr"]) for line in lines), default=None)
