"""The work of stage evaluate: captions of a split, their scores, and the report."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from a2.data.annotations import Skipped
from a2.data.batches import picture_batches
from a2.data.errors import InputError, StoreError
from a2.data.feature_store import FeatureStore
from a2.data.json_files import read_json, write_json
from a2.pipeline.config import EvaluateConfig, RuntimeConfig
from a2.pipeline.decoding import Beam, caption_batches
from a2.pipeline.device import prepare_device
from a2.pipeline.engine.run import read_skipped
from a2.pipeline.engine.stage import EventLog, Input
from a2.pipeline.java import find_java
from a2.pipeline.metrics import Scores, score, tokenize
from a2.pipeline.progress import track
from a2.pipeline.report import Report, ReportPicture, write_report
from a2.pipeline.results import write_results
from a2.pipeline.saved_model import SavedModel, load_model
from a2.pipeline.stages.evaluate import CAPTIONS, METRICS, REPORT
from a2.pipeline.stages.extract import FEATURES
from a2.pipeline.stages.preprocess import PICTURES, REFERENCES

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Split:
    """The pictures that are evaluated: those of the split less those without features."""

    image_ids: list[str]
    total: int
    skipped: dict[str, str]
    files: dict[str, str]


def evaluate_captioner(
    config: EvaluateConfig,
    inputs: Mapping[str, Input],
    images: Path | None,
    runtime: RuntimeConfig,
    *,
    directory: Path,
    events: EventLog,
) -> Sequence[Skipped]:
    """Fills `directory` with captions, metrics and report; returns the pictures left out."""
    find_java()
    model = load_model(inputs["model"].path, device=prepare_device(runtime))
    store = FeatureStore(inputs["features"].path / FEATURES)
    require_width(store, model)
    split = _read_split(config.split, inputs)
    store.require(split.image_ids)
    beams = _decode(config, model, store, split, device=prepare_device(runtime))
    captions = {image_id: found[0].caption for image_id, found in beams.items()}
    write_results(directory / CAPTIONS, captions)
    references = read_json(inputs["captions"].path / REFERENCES)
    tokens = tokenize({image_id: [caption] for image_id, caption in captions.items()})
    scores = score(tokens, {image_id: references[image_id] for image_id in split.image_ids})
    events.write("scored", **scores.metrics)
    provenance = _provenance(config, inputs, model)
    write_json(directory / METRICS, _metrics(scores, split, provenance))
    write_report(
        directory / REPORT,
        Report(
            title=f"Captions of {config.split}",
            metrics=scores.metrics,
            baseline=_baseline(inputs),
            baseline_name=config.baseline_name,
            not_run=scores.not_run,
            n=len(split.image_ids),
            total=split.total,
            skipped=split.skipped,
            provenance=provenance,
            pictures=[
                _picture(image_id, store, images, split, beams[image_id], references, scores)
                for image_id in split.image_ids
            ],
        ),
        max_pictures=config.report_pictures,
    )
    return [Skipped(image_id, reason) for image_id, reason in split.skipped.items()]


def require_width(store: FeatureStore, model: SavedModel) -> None:
    """StoreError where a store's features are not as wide as those the model was trained on."""
    expected = model.description.region_width
    if store.feature_width != expected:
        raise StoreError(
            f"region width of {str(store.path)!r} is {store.feature_width}, the model expects "
            f"{expected}; retrain, or extract with the checkpoint that it was trained on"
        )


def _read_split(name: str, inputs: Mapping[str, Input]) -> _Split:
    pictures = read_json(inputs["captions"].path / PICTURES)
    chosen = sorted(image_id for image_id, found in pictures.items() if found["split"] == name)
    left_out = read_skipped(inputs["features"].path)
    skipped = {image_id: left_out[image_id] for image_id in chosen if image_id in left_out}
    kept = [image_id for image_id in chosen if image_id not in skipped]
    if not kept:
        raise InputError(f"no picture of split {name!r} has features; set evaluate.split")
    return _Split(kept, len(chosen), skipped, {i: pictures[i]["file"] for i in kept})


def _decode(
    config: EvaluateConfig, model: SavedModel, store: FeatureStore, split: _Split, *, device
) -> dict[str, list[Beam]]:
    batches = picture_batches(
        store.path,
        split.image_ids,
        batch_size=config.batch_size,
        max_regions=model.description.max_regions,
    )
    found = {}
    decoded = caption_batches(
        model.captioner,
        batches,
        model.vocabulary,
        beam_size=config.beam_size,
        max_length=config.max_length,
        length_penalty=config.length_penalty,
        device=device,
    )
    with track("caption", total=len(split.image_ids)) as progress:
        for image_id, beams in decoded:
            found[image_id] = beams
            progress.advance(1)
    return found


def _baseline(inputs: Mapping[str, Input]) -> dict[str, float] | None:
    if "baseline" not in inputs:
        return None
    path = inputs["baseline"].path
    content = read_json(path)
    if not isinstance(content, dict) or "metrics" not in content:
        raise InputError(f"evaluate.baseline holds no metrics: {str(path)!r}; name a metrics.json")
    return dict(content["metrics"])


def _provenance(
    config: EvaluateConfig, inputs: Mapping[str, Input], model: SavedModel
) -> dict[str, str]:
    """What a reader needs to reproduce the figures, or to see why theirs differ."""
    found = {f"digest of {name}": item.digest[:12] for name, item in inputs.items()}
    settings = model.description.model.model_dump(mode="json")
    return {
        "split": config.split,
        "decoding": f"beam {config.beam_size}, at most {config.max_length} tokens, "
        f"length penalty {config.length_penalty:g}",
        "vocabulary": f"{len(model.vocabulary)} entries, {model.vocabulary.digest[:12]}",
        **{f"model.{name}": str(value) for name, value in settings.items()},
        **found,
    }


def _metrics(scores: Scores, split: _Split, provenance: dict[str, str]) -> dict[str, object]:
    return {
        "metrics": scores.metrics,
        "n": len(split.image_ids),
        "total": split.total,
        "not_run": scores.not_run,
        "provenance": provenance,
    }


def _picture(
    image_id: str,
    store: FeatureStore,
    images: Path | None,
    split: _Split,
    beams: list[Beam],
    references: Mapping[str, list[str]],
    scores: Scores,
) -> ReportPicture:
    regions = store[image_id]
    return ReportPicture(
        image_id=image_id,
        picture=None if images is None else images / split.files[image_id],
        width=regions.width,
        height=regions.height,
        boxes=regions.boxes.astype(np.float32),
        caption=beams[0].caption,
        references=references[image_id],
        scores=scores.per_picture[image_id],
        beams=[(beam.caption, beam.score) for beam in beams],
    )
