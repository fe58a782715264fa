"""Scores on disk: metrics.json for people and programs, per_image.json for resampling.

`metrics.json` holds {metrics, n, total, not_run, confidence, spice, captions, provenance} and
bleu_without_brevity_penalty (BLEU-1 to 4), with grounding if the data has boxes, word_groups if it
has groups of words, and erasure if that was measured: a row for each order.
`per_image.json` holds under `images`, for each image id, its caption and references, its
metrics, its SPICE categories, and the counts (BLEU, METEOR, word_groups) whose sums over images
give the metrics that are not means.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.pipeline.engine.artifact_names import METRICS, PER_IMAGE
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.word_groups import WordScore
from a2cap.pipeline.report.erasure import erasure_rows
from a2cap.pipeline.report.report import Baseline, ScoreReport


def write_scores(directory: Path, evaluation: ScoreReport) -> None:
    """Write metrics.json and per_image.json."""
    scores, word_groups = evaluation.scores, evaluation.word_groups
    content: dict[str, object] = {
        "metrics": scores.metrics,
        "n": len(evaluation.captions),
        "total": evaluation.total,
        "not_run": scores.not_run,
        "confidence": scores.confidence,
        "spice": scores.spice,
        "bleu_without_brevity_penalty": scores.unpenalised_bleu,
        "captions": evaluation.figures,
        "provenance": evaluation.provenance,
    }
    if grounding := evaluation.mean_grounding:
        content["grounding"] = asdict(grounding)
    if evaluation.erasure:
        content["erasure"] = erasure_rows(evaluation.erasure)
    if word_groups:
        content["word_groups"] = {n: asdict(score) for n, score in word_groups.groups.items()}
    write_json(directory / METRICS, content)

    images = {image_id: _image_content(evaluation, image_id) for image_id in evaluation.captions}
    # Keys keep the spelling of the first version, which finished results contain.
    # Not `write_json`: indentation would double the size of the file.
    text = json.dumps({"images": images}, allow_nan=False, sort_keys=True)
    (directory / PER_IMAGE).write_text(text + "\n", encoding="utf-8", newline="\n")


def image_scores(scores: Scores, image_id: str) -> dict[str, Any]:
    """Return the metrics of an image, and the numbers whose sums give the others."""
    sums = {family: rows[image_id] for family, rows in scores.statistics.items()}
    return {"metrics": scores.per_image[image_id], **sums}


def _image_content(evaluation: ScoreReport, image_id: str) -> dict[str, object]:
    scores, groups = evaluation.scores, evaluation.word_groups
    content: dict[str, object] = {
        "caption": evaluation.captions[image_id],
        "references": list(evaluation.references[image_id]),
        "spice": scores.spice_per_image.get(image_id, {}),
        **image_scores(scores, image_id),
    }
    if image_id in evaluation.judged:
        content["false_words"] = evaluation.judged[image_id].false_words
    if groups:
        counts = groups.per_image[image_id]
        content["word_groups"] = {name: values._asdict() for name, values in counts.items()}
    return content


def read_baseline(path: Path) -> Baseline:
    """Return the scores in a metrics.json; raise InputError if the file is not one."""
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise TypeError("not an object")
        groups = content.get("word_groups", {}).items()
        return Baseline(
            metrics={str(name): float(value) for name, value in content["metrics"].items()},
            word_groups={str(name): WordScore(**score) for name, score in groups},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"evaluate.baseline contains no metrics: {str(path)!r}; name a metrics.json"
        ) from error
