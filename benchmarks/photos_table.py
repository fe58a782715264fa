"""Rows of the table of Flickr8k: captioners, their data, and the figures of their results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from a2cap.data.captions.attention_file import AttentionFile
from a2cap.data.files.json_file import read_json
from a2cap.model.alignment_config import FUSIONS
from a2cap.model.captioners.kinds import KINDS
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import ATTENTION, METRICS
from benchmarks.photos_data import read_photos, write_annotations, write_images

_CONFIG = Path(__file__).parents[1] / "configs" / "flickr8k-a2.yaml"
PUBLISHED = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
FIGURES = (*PUBLISHED, "Bleu_4 without brevity penalty", "distance of attention from even")

_LAYERED: dict[str, object] = {
    "width": 256,
    "feed_forward": 1024,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.2,
}
_KINDS: dict[str, dict[str, object]] = {
    "transformer": {**_LAYERED, "box_geometry": "linear"},
    "m2": _LAYERED,
    "aoa": {"width": 256, "refiner_layers": 2},
    "spatial": {**_LAYERED, "cells": 49, "words": 24},
    "up-down": {"width": 512, "embedding": 256, "attention_width": 256, "dropout": 0.5},
    "show-attend-tell": {"width": 512, "embedding": 256, "attention_width": 256},
    "gru": {"attention": "additive"},
}
"""Sizes of each kind of captioner that train on a CPU."""
_FUSIONS = dict.fromkeys(_KINDS, ("none", "gate")) | {"transformer": tuple(FUSIONS)}
_SHORT: dict[str, object] = {
    **_KINDS["show-attend-tell"],
    "kind": "show-attend-tell",
    "attention_layers": 1,
    "initial": "uniform",
    "doubly_stochastic": 0.0,
    "dropout": 0.3,
    "alignment": {"fusion": "none"},
}
ROWS = {
    f"{kind}, {fusion}": {
        "kind": kind,
        **sizes,
        "alignment": {"fusion": fusion, "penalty_weight": 0.0005},
    }
    for kind, sizes in _KINDS.items()
    for fusion in _FUSIONS[kind]
} | {
    "show-attend-tell, hard": {
        **_KINDS["show-attend-tell"],
        "kind": "show-attend-tell",
        "attention": "hard",
        "alignment": {"fusion": "none"},
    },
    "show-attend-tell, short training": _SHORT,
    "show-attend-tell, hard, short training": {
        **_SHORT,
        "attention": "hard",
        "hard": {"baseline": "soft"},
    },
}
"""Captioners of the table: kind and fusion -> fields of `model`; with such a lambda masks move."""


def prepare_flickr8k(photos: Path, folder: Path) -> None:
    """Link the photographs, write their mirror images, and write annotations of both."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    if not (images / "flickr8k").exists():
        (images / "flickr8k").symlink_to((photos / "images").resolve(), target_is_directory=True)
    read = read_photos(photos / "captions.csv")
    linked = [replace(photo, file=Path("flickr8k", photo.file)) for photo in read]
    write_images(linked, images, images)
    annotations = folder / "dataset_flickr8k.json"
    if not annotations.is_file():
        write_annotations(annotations, linked, {}, dataset="flickr8k")


def row_config(folder: Path, row: str, seed: int, fields: Sequence[str]) -> Config:
    """Return the configuration of a row of the table."""
    data = {"images": folder / "images", "annotations": folder / "dataset_flickr8k.json"}
    places = [override(f"data.{name}", path) for name, path in data.items()]
    config = load_config(_CONFIG, [*places, "data.split_list=null", *fields])
    model = {"standardise": True, **ROWS[row]}
    kind = KINDS[str(model["kind"])].settings
    update = {"model": kind.model_validate(model)}
    for phase in ("train", "scst"):
        update[phase] = getattr(config, phase).model_copy(update={"seed": seed})
    return config.model_copy(update=update)


def figures(evaluation: Path) -> list[str]:
    """Return the cells of `FIGURES` of a result of a2 evaluate."""
    metrics: Any = read_json(evaluation / METRICS)
    values = [metrics["metrics"][name] for name in PUBLISHED]
    values.append(metrics["bleu_without_brevity_penalty"][3])
    file = evaluation / ATTENTION
    distance = distance_from_even(AttentionFile(file)) if file.is_file() else None
    return [*(f"{v:.3f}" for v in values), "-" if distance is None else f"{distance:.3f}"]


def distance_from_even(attention: AttentionFile) -> float | None:
    """Return the total variation between a word's attention and an even spread, mean over words."""
    distances = [
        np.abs(row / row.sum() - 1 / len(row)).sum() / 2
        for image_id in attention
        for row in attention[image_id].original
    ]
    return float(np.mean(distances)) if distances else None
