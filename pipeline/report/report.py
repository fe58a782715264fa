"""Evaluation report: one HTML file with every caption, and images of the worst and the best.

Captions, references and scores of all images are embedded as JSON, which the page sorts, searches
and draws a few at a time. The worst and the best are embedded with their image, regions and
attention.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from a2cap.pipeline.captioning.grounding import Grounding
from a2cap.pipeline.metrics.word_groups import GroupScore
from a2cap.pipeline.report.html import write_page
from a2cap.pipeline.report.image_card import ImageCard
from a2cap.pipeline.report.summary import group_rows, histogram, in_order, metric_rows, shown_name


@dataclass(frozen=True)
class ReportImage:
    """Captions and scores of one image.

    references: captions by people. scores: metric -> value. beams: captions with the scores that
    ranked them, best first. grounding: of the caption, if it is known.
    """

    image_id: str
    caption: str
    references: Sequence[str]
    scores: Mapping[str, float]
    beams: Sequence[tuple[str, float]] = ()
    grounding: Grounding | None = None


@dataclass(frozen=True)
class Report:
    """Content of an evaluation report.

    metrics: metric -> value over all images. intervals: metric -> 95 % confidence interval.
    baseline: metrics of another run, which is called `baseline_name`, or None.
    not_run: metric -> reason why it has no value.
    n: number of scored images, of `total`. skipped: image id -> reason.
    provenance: name -> value, in the order of display. statistics: the same, of the captions.
    grounding: over all captions, if there are annotated boxes.
    word_groups, baseline_groups: group of words -> scores, of this run and of the other.
    """

    title: str
    metrics: Mapping[str, float]
    baseline: Mapping[str, float] | None
    baseline_name: str
    not_run: Mapping[str, str]
    n: int
    total: int
    skipped: Mapping[str, str]
    provenance: Mapping[str, str]
    images: Sequence[ReportImage]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    statistics: Mapping[str, str] = field(default_factory=dict)
    grounding: Grounding | None = None
    word_groups: Mapping[str, GroupScore] = field(default_factory=dict)
    baseline_groups: Mapping[str, GroupScore] = field(default_factory=dict)


def write_report(path: Path, report: Report, cards: Iterable[tuple[str, ImageCard]] = ()) -> None:
    """Write the report as one HTML file.

    cards: (image id, card) of the images to embed; consumed one by one, so that they need not be in
    memory together.
    """
    metrics = in_order(name for image in report.images for name in image.scores)
    cider = [image.scores["CIDEr"] for image in report.images if "CIDEr" in image.scores]
    captions = {image.image_id: image.caption for image in report.images}
    write_page(
        path,
        "report.html",
        report=report,
        metrics=metric_rows(
            report.metrics, report.intervals, report.baseline or {}, report.not_run
        ),
        groups=group_rows(report.word_groups, report.baseline_groups),
        histogram=histogram(cider),
        orders=[shown_name(name) for name in metrics],
        data={
            "metrics": [shown_name(name) for name in metrics],
            "images": [_as_json(image, metrics) for image in report.images],
        },
        cards=((image_id, card.as_json(captions[image_id])) for image_id, card in cards),
    )


def _as_json(image: ReportImage, metrics: Sequence[str]) -> dict[str, object]:
    """Return an image for the page's script, with scores in the order of `metrics`."""
    grounding = image.grounding
    return {
        "id": image.image_id,
        "caption": image.caption,
        "references": list(image.references),
        "beams": [[caption, _rounded(score)] for caption, score in image.beams],
        "scores": [_rounded(image.scores.get(name)) for name in metrics],
        "grounding": grounding
        and [
            *map(_rounded, (grounding.original, grounding.aligned, grounding.uniform)),
            grounding.words,
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def worst_and_best(scores: Mapping[str, Mapping[str, float]], limit: int) -> list[str]:
    """Return at most `limit` image ids by ascending CIDEr: half the lowest, half the highest.

    scores: image id -> metric -> value.
    """
    # The id breaks ties, so that equal scores give equal reports.
    ordered = sorted(scores, key=lambda image_id: (scores[image_id].get("CIDEr", 0.0), image_id))
    if len(ordered) <= limit:
        return ordered
    best = limit // 2
    return ordered[: limit - best] + ordered[len(ordered) - best :]
