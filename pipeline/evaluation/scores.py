"""Scores on disk: metrics.json for people and other programs, per_picture.json to draw anew from.

`metrics.json` holds {metrics, n, total, not_run, confidence, spice, captions, provenance},
grounding where the data has boxes, and word_groups where it has groups of words.
`per_picture.json` holds under `images`, for each image id, its caption and references, its
metrics, its parts of SPICE, and the numbers (BLEU, METEOR, word_groups) whose sums over images
give the figures that are no means.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from a2cap.data.files.json_file import write_json
from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.engine.artifacts import METRICS, PER_IMAGE
from a2cap.pipeline.metrics.score import Scores
from a2cap.pipeline.metrics.word_groups import WordGroupScores


def write_scores(
    directory: Path,
    scores: Scores,
    captions: Mapping[str, float],
    *,
    total: int,
    provenance: Mapping[str, str],
    grounding: Grounding | None = None,
    word_groups: WordGroupScores | None = None,
    said: Mapping[str, str] = MappingProxyType({}),
    references: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write both files.

    captions: figures of the captions, as `caption_statistics` gives them. total: images that were
    to be scored, those that had to be left out included. said, references: what a comparison of two
    runs shows of each image, by image id.
    """
    content: dict[str, object] = {
        "metrics": scores.metrics,
        "n": len(scores.per_image),
        "total": total,
        "not_run": scores.not_run,
        "confidence": {name: list(ends) for name, ends in scores.confidence.items()},
        "spice": scores.spice,
        "captions": dict(captions),
        "provenance": dict(provenance),
    }
    if grounding is not None:
        content["grounding"] = asdict(grounding)
    if word_groups is not None:
        content["word_groups"] = {n: asdict(found) for n, found in word_groups.groups.items()}
    write_json(directory / METRICS, content)
    images = {image_id: _of_image(scores, image_id) for image_id in sorted(scores.per_image)}
    for image_id, counts in (word_groups.per_image if word_groups else {}).items():
        images[image_id]["word_groups"] = {n: found._asdict() for n, found in counts.items()}
    for image_id, caption in said.items():
        images[image_id] |= {"caption": caption, "references": list(references[image_id])}
    text = json.dumps({"pictures": images}, allow_nan=False, sort_keys=True)
    (directory / PER_IMAGE).write_text(text + "\n", encoding="utf-8", newline="\n")


def _of_image(scores: Scores, image_id: str) -> dict[str, object]:
    return {
        "metrics": scores.per_image[image_id],
        "spice": scores.spice_per_image.get(image_id, {}),
        **{family: rows[image_id] for family, rows in scores.statistics.items()},
    }
