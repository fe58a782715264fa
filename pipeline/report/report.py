"""Evaluation report: one HTML file with every caption, and images of the worst, typical and best.

Captions, references and scores of all images are embedded as JSON, which the page sorts, searches
and draws a few at a time. Some are embedded with their image, regions and attention.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.scenes.truth import Judgement
from a2cap.pipeline.captioning.grounding import Grounding, mean_grounding
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.metric_table import MAIN, in_order, main_of, shown_name
from a2cap.pipeline.metrics.word_groups import WordGroupScores, WordScore
from a2cap.pipeline.report.curves import panels
from a2cap.pipeline.report.erasure import (
    curve_rows,
    erasure_panels,
    erasure_rows,
    erasure_table,
    shown_orders,
)
from a2cap.pipeline.report.html import write_page
from a2cap.pipeline.report.image_card import ImageCard
from a2cap.pipeline.report.summary import (
    cited_figures,
    format_figures,
    group_table,
    headline,
    histogram,
    metric_table,
)
from a2cap.pipeline.training.learning_curve import LearningCurve

if TYPE_CHECKING:  # they import torch, which a page of scores does not need
    from a2cap.model.erasure import Erasure
    from a2cap.pipeline.captioning.decoding import Beam


@dataclass(frozen=True)
class Baseline:
    """Metrics and word groups of another evaluation; word_groups is empty if it had none."""

    metrics: dict[str, float]
    word_groups: dict[str, WordScore] = field(default_factory=dict)
    name: str = "baseline"


@dataclass(frozen=True)
class ScoreReport:
    """Captions of a set of images, their scores, and everything else that the report shows.

    captions, references: by image id, in the order of display.
    skipped: image id -> reason.
    figures: of the captions.
    provenance: name -> value, in the order of display.
    beams: captions with the scores that ranked them, best first. beams and grounding are empty for
        captions that were read from a file.
    judged: captions of generated scenes.
    baseline: another evaluation to compare with.
    facts: model, data and command in the header of the report, name -> value.
    curve: of the training.
    keys: ids of images as their files have them.
    erasure: of some images, for each order of what the captioner attends to.
    """

    title: str
    captions: Mapping[str, str]
    references: Mapping[str, Sequence[str]]
    scores: Scores
    skipped: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    beams: Mapping[str, Sequence["Beam"]] = field(default_factory=dict)
    grounding: Mapping[str, Grounding] = field(default_factory=dict)
    word_groups: WordGroupScores | None = None
    judged: Mapping[str, Judgement] = field(default_factory=dict)
    baseline: Baseline | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    curve: LearningCurve | None = None
    keys: Mapping[str, int | str] = field(default_factory=dict)
    erasure: Sequence["Erasure"] = ()

    @property
    def total(self) -> int:
        """Number of images, skipped ones included."""
        return len(self.captions) + len(self.skipped)

    @property
    def mean_grounding(self) -> Grounding | None:
        """Grounding over the words of all captions, None without annotated boxes."""
        return mean_grounding(self.grounding.values())


def write_report(
    path: Path, evaluation: ScoreReport, cards: Iterable[tuple[str, ImageCard]] = ()
) -> None:
    """Write the report as one HTML file.

    cards: (image id, card) of the images to embed; consumed one by one, so that they need not be in
    memory together.
    """
    scores, baseline = evaluation.scores, evaluation.baseline or Baseline({})
    groups = evaluation.word_groups.groups if evaluation.word_groups else {}
    metrics = in_order(name for values in scores.per_image.values() for name in values)
    cider = [values[MAIN] for values in scores.per_image.values() if MAIN in values]
    judged = list(evaluation.judged.values())
    erased = erasure_rows(evaluation.erasure)
    write_page(
        path,
        "report.html",
        evaluation=evaluation,
        headline=headline(scores, baseline.metrics, baseline.name, judged),
        cited=cited_figures(scores),
        statistics=format_figures(evaluation.figures, scores.spice),
        grounding=evaluation.mean_grounding,
        metrics=metric_table(scores, baseline.metrics, baseline.name),
        groups=group_table(groups, baseline.word_groups, baseline.name),
        histogram=histogram(cider),
        curves=panels([evaluation.curve]),
        erasure=erasure_table(erased) if erased else None,
        erasure_names=shown_orders(erased),
        erasure_panels=erasure_panels(curve_rows(evaluation.erasure)) if erased else [],
        orders=[shown_name(name) for name in metrics],
        main=metrics.index(main_of(metrics)) if metrics else 0,
        data={
            "metrics": [shown_name(name) for name in metrics],
            "images": [_as_json(image_id, evaluation, metrics) for image_id in evaluation.captions],
        },
        cards=((image_id, card.as_json(evaluation.captions[image_id])) for image_id, card in cards),
    )


def _as_json(image_id: str, evaluation: ScoreReport, metrics: Sequence[str]) -> dict[str, object]:
    """Return an image for the page's script, with scores in the order of `metrics`."""
    grounding = evaluation.grounding.get(image_id)
    scores = evaluation.scores.per_image[image_id]
    judged = evaluation.judged.get(image_id)
    return {
        "id": image_id,
        "caption": evaluation.captions[image_id],
        **({"false": judged.false_words} if judged else {}),
        "references": list(evaluation.references[image_id]),
        "beams": [
            [beam.caption, _rounded(beam.score)] for beam in evaluation.beams.get(image_id, ())
        ],
        "scores": [_rounded(scores.get(name)) for name in metrics],
        "grounding": grounding
        and [
            *map(_rounded, (grounding.original, grounding.aligned, grounding.uniform)),
            grounding.words,
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def worst_typical_best(scores: Mapping[str, Mapping[str, float]], limit: int) -> list[str]:
    """Return at most `limit` image ids by ascending CIDEr: the lowest, the median, the highest.

    Each is a third; the page opens with all three. scores: image id -> metric -> value.
    """
    # The id breaks ties, so that equal scores give equal reports.
    ordered = sorted(scores, key=lambda image_id: (scores[image_id].get(MAIN, 0.0), image_id))
    if len(ordered) <= limit:
        return ordered
    best = limit // 3
    worst = (limit - best) // 2
    typical = limit - best - worst
    first = (len(ordered) - typical) // 2
    return ordered[:worst] + ordered[first : first + typical] + ordered[len(ordered) - best :]
