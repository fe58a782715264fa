"""Scores on disk: metrics.json for people and programs, per_picture.json for resampling.

`metrics.json` holds {metrics, n, total, not_run, confidence, spice, captions, provenance}, with
grounding if the data has boxes, and word_groups if it has groups of words.
`per_picture.json` holds under `pictures`, for each image id, its caption and references, its
metrics, its SPICE categories, and the counts (BLEU, METEOR, word_groups) whose sums over images
give the metrics that are not means.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.engine.artifacts import METRICS, PER_IMAGE
from a2cap.pipeline.metrics.score import Scores
from a2cap.pipeline.metrics.word_groups import GroupScore, WordGroupScores


@dataclass(frozen=True)
class Baseline:
    """Metrics and word groups of another evaluation; word_groups is empty if it had none."""

    metrics: dict[str, float]
    word_groups: dict[str, GroupScore]


def write_scores(
    directory: Path,
    scores: Scores,
    statistics: Mapping[str, float],
    *,
    total: int,
    provenance: Mapping[str, str],
    grounding: Grounding | None = None,
    word_groups: WordGroupScores | None = None,
    captions: Mapping[str, str] = MappingProxyType({}),
    references: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write metrics.json and per_picture.json.

    statistics: of the captions, from `caption_statistics`. total: number of images, skipped ones
    included. captions, references: by image id, shown when two runs are compared.
    """
    content: dict[str, object] = {
        "metrics": scores.metrics,
        "n": len(scores.per_image),
        "total": total,
        "not_run": scores.not_run,
        "confidence": {name: list(ends) for name, ends in scores.confidence.items()},
        "spice": scores.spice,
        "captions": dict(statistics),
        "provenance": dict(provenance),
    }
    if grounding is not None:
        content["grounding"] = asdict(grounding)
    if word_groups is not None:
        content["word_groups"] = {n: found.as_json() for n, found in word_groups.groups.items()}
    write_json(directory / METRICS, content)

    images = {image_id: _image_scores(scores, image_id) for image_id in scores.per_image}
    for image_id, counts in (word_groups.per_image if word_groups else {}).items():
        images[image_id]["word_groups"] = {n: found.as_json() for n, found in counts.items()}
    for image_id, caption in captions.items():
        images[image_id] |= {"caption": caption, "references": list(references[image_id])}
    # Not `write_json`: indentation would double the size of the file.
    text = json.dumps({"pictures": images}, allow_nan=False, sort_keys=True)
    (directory / PER_IMAGE).write_text(text + "\n", encoding="utf-8", newline="\n")


def _image_scores(scores: Scores, image_id: str) -> dict[str, object]:
    return {
        "metrics": scores.per_image[image_id],
        "spice": scores.spice_per_image.get(image_id, {}),
        **{family: rows[image_id] for family, rows in scores.statistics.items()},
    }


def read_baseline(path: Path) -> Baseline:
    """Return the scores in a metrics.json; raise InputError if the file is not one."""
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise TypeError("not an object")
        groups = content.get("word_groups", {}).items()
        return Baseline(
            metrics={str(name): float(value) for name, value in content["metrics"].items()},
            word_groups={str(name): GroupScore.from_json(found) for name, found in groups},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"evaluate.baseline contains no metrics: {str(path)!r}; name a metrics.json"
        ) from error
