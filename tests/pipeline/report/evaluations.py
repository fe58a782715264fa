"""Evaluations of numbered images, and cards of their images, for reports."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from a2cap.data.captions.attention_file import CaptionAttention
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.report.image_card import ImageCard
from a2cap.pipeline.report.report import Baseline, ScoreReport


def padded(number: int) -> str:
    return f"{number:012d}"


def evaluation(
    numbers: Iterable[int], *, caption: Callable[[int], str] = "caption {}".format, **changes: Any
) -> ScoreReport:
    """Return an evaluation of these images; `caption` gives that of a number."""
    captions = {padded(n): caption(n) for n in numbers}
    per_image = {name: {"CIDEr": int(name) / 10, "Bleu_4": 0.25} for name in captions}
    standard = ScoreReport(
        title="Captions of test",
        captions=captions,
        references={
            name: [f"reference {int(name)} a", f"reference {int(name)} b"] for name in captions
        },
        scores=Scores({"CIDEr": 0.8, "Bleu_4": 0.27}, per_image, {"SPICE": "no jars"}),
        skipped={"000000391895": "truncated file"},
        provenance={"vocabulary": "10,201 entries", "decoding": "beam 5"},
        beams={
            name: [Beam(text, -1.5), Beam("second beam", -2.25)] for name, text in captions.items()
        },
        baseline=Baseline({"CIDEr": 0.4}, name="features zeroed"),
    )
    return replace(standard, **changes)


def with_scores(evaluated: ScoreReport, **changes: Any) -> ScoreReport:
    return replace(evaluated, scores=replace(evaluated.scores, **changes))


def card(photo: Path | None, attention: CaptionAttention | None, **changes: Any) -> ImageCard:
    """Return an image of 640 x 480 pixels with three regions, of which two have a category."""
    standard = ImageCard(
        image=photo,
        width=640,
        height=480,
        boxes=np.array([[10, 20, 60, 50], [0, 0, 640, 480], [300, 200, 500, 400]], np.float32),
        names=["dog", "", "cat"],
        scores=np.array([0.5, 0.876, 1.0], dtype=np.float32),
        attention=attention,
    )
    return replace(standard, **changes)
