"""Finished trainings to analyse, with their inputs and evaluations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from a2cap.data.batches.collate import Batch
from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.paths import did_you_mean
from a2cap.data.files.sealed_folder import MANIFEST, Manifest, read_manifest, read_output
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner, load_model
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONS,
    EVALUATE,
    EXTRACT,
    FEATURES,
    METRICS,
    PREPROCESS,
    REFERENCES,
)
from a2cap.pipeline.engine.explain import finished_results
from a2cap.pipeline.metrics.metric_table import MAIN
from a2cap.pipeline.training.learning_curve import LearningCurve

_NAMES = 'name a result of "a2 train", a folder of them, or the YAML file of an experiment'


@dataclass(frozen=True)
class Run:
    """Finished training, or a model of `transformers` beside preprocessed captions.

    name: title in tables.
    model, features, captions: directories of results.
    manifest: of the training, or of the captions.
    images: image id -> file, for a model that reads no features.
    validation: best validation CIDEr of its epochs, None if it was not measured.
    metrics: of its evaluation on `evaluated_split`, empty if there is none.
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


@dataclass(frozen=True)
class OpenedRun:
    """A run with its loaded captioner and the images of a split that have features.

    references: tokens of the captions of each image. total: images of the split with and without
    features.
    """

    run: Run
    split: str
    model: LoadedCaptioner[EncoderDecoder]
    store: FeatureStore
    captions: CaptionFile
    image_ids: Sequence[str]
    total: int

    @classmethod
    def open(cls, run: Run, *, split: str, images: int | None, device: torch.device) -> "OpenedRun":
        """Load a run for a split, or for its first `images` by id.

        Raises InputError if no image of the split has features, or captions and captioner have
        different vocabularies; StoreError if the features have another width; A2Error for an
        unusable model.
        """
        assert run.features is not None
        model = load_model(run.model, device=device)
        store = FeatureStore(run.features / FEATURES)
        store.require_width(model.description.region_width)
        captions = CaptionFile(run.captions / CAPTIONS)
        if captions.vocabulary_digest != model.description.vocabulary_digest:
            raise InputError(
                f"captions and captioner have different vocabularies: {str(run.captions)!r} and "
                f"{str(run.model)!r}; name the captions that it was trained on with --artifacts"
            )
        skipped = read_manifest(run.features).reasons
        of_split = sorted(captions.image_ids(split))
        image_ids = [image_id for image_id in of_split if image_id not in skipped][:images]
        if not image_ids:
            raise InputError(
                f"no image of split {split!r} has features; set --split to another one"
            )
        return cls(run, split, model, store, captions, image_ids, len(of_split))

    @cached_property
    def references(self) -> Mapping[str, Sequence[str]]:
        """The captions of each image, as PTB tokens joined by spaces."""
        return load_reference_tokens(self.run.captions / REFERENCES)

    def batches(self, image_ids: Sequence[str], *, batch_size: int = 50) -> Iterable[Batch]:
        """Return the features of these images in batches."""
        most = self.model.description.max_regions
        return image_batches(self.store.path, image_ids, batch_size=batch_size, max_regions=most)

    def attend(self, captions: Mapping[str, str]) -> Iterator[tuple[str, CaptionAttention]]:
        """Yield (image id, attention at each word of its caption)."""
        return self.model.attend(self.batches(list(captions)), captions)


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
        raise InputError(f"no such folder or file: {str(path)!r}; {_NAMES}{did_you_mean(path)}")
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
    scores = [line[MAIN] for line in curve.epochs if line["epoch"]] if curve else []
    return max(scores, default=None)
